"""A driver of two GPUs that only answers: NVIDIA's management library, in C."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: The second GPU is 10 degrees warmer. There is no function for the clock.
LIBRARY = """
typedef struct { unsigned gpu, memory; } Load;
static char cards[2];
#ifdef SLICES
/* The first card is divided, and the first of its three places is empty. */
#include <string.h>
static char slices[3];
int nvmlDeviceGetMigMode(void *card, unsigned *current, unsigned *pending) {
  *current = *pending = card == cards;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *card, unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *card, unsigned index, void **slice) {
  *slice = slices + index;
  return index ? 0 : 6;
}
int nvmlDeviceGetHandleByUUID(const char *id, void **slice) {
  if (!strcmp(id, "MIG-small")) *slice = slices + 1;
  else if (!strcmp(id, "MIG-large")) *slice = slices + 2;
  else return 6;
  return 0;
}
#endif
int nvmlInitWithFlags(unsigned flags) { return ANSWER; }
int nvmlInit_v2(void) { return ANSWER; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = cards + index; return 0; }
int nvmlDeviceGetName(void *card, char *name, unsigned length) {
  const char *own = "NVIDIA H100 80GB HBM3";
#ifdef SLICES
  if (card == slices + 1) own = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
  if (card == slices + 2) own = "NVIDIA H100 80GB HBM3 MIG 3g.40gb";
#endif
  for (unsigned i = 0; i < length; i++) if (!(name[i] = own[i])) break;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *card, Load *load) { load->gpu = 87; load->memory = 40; return 0; }
int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) { *milliwatts = 512500; return 0; }
int nvmlDeviceGetTemperature(void *card, unsigned sensor, unsigned *degrees) {
  *degrees = 60 + 10 * (unsigned)((char *)card - cards);
  return 0;
}
"""


class Driver:
    """Runs Python with the library."""

    def __init__(self, folder: Path, answer: int = 0, *, slices: bool = False) -> None:
        """Build the library in a folder; `answer` is NVML's code of its start, 0 for success.

        With `slices` the first GPU is divided by MIG, else the library has no function for that.
        """
        if not shutil.which("gcc"):
            pytest.skip("needs gcc")
        self.folder = folder
        source = folder / "nvml.c"
        source.write_text(LIBRARY)
        target = folder / "libnvidia-ml.so.1"
        macros = [f"-DANSWER={answer}", *(["-DSLICES"] if slices else [])]
        subprocess.run(["gcc", *macros, "-shared", "-fPIC", "-o", target, source], check=True)

    def run(self, code: str, visible: str | None = None) -> tuple[Any, str]:
        """What a program printed, as JSON, and its stderr; `visible` is CUDA_VISIBLE_DEVICES, else not set."""
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.folder)}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        ran = subprocess.run(
            [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
        )
        return json.loads(ran.stdout), ran.stderr
