"""One thread everywhere and no network: what a test measures must not depend on the machine's cores or its luck."""

import os

# Before numpy and torch are first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
