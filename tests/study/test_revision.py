"""The revision of the code."""

from study.revision import REVISION, revision


def test_the_revision_of_a_copy_without_git_is_that_of_the_checkout_that_sent_it(monkeypatch):
    here = revision()
    monkeypatch.setenv(REVISION, "0123abc+")
    assert revision.__wrapped__() == here, "git's answer comes first"
    monkeypatch.setenv("PATH", "")
    assert revision.__wrapped__() == "0123abc+"
    monkeypatch.delenv(REVISION)
    assert revision.__wrapped__().startswith("interplay ")
