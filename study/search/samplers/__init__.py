"""The built-in samplers: each module registers those it defines with `study.spec.search.register`."""
