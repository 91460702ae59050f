"""A libnvidia-ml.so.1 that limits memory as NVML of r615 does with dmem, and lets a test allocate."""

import ctypes
from pathlib import Path

from tests.hardware.test_compiled_library import NAME, ONE_GPU, compiled

MIB = 1 << 20
OUT_OF_MEMORY = 2
"""CUDA's code."""

SOURCE = (
    ONE_GPU
    + r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef unsigned long long bytes;
typedef struct { const char *nameSpace; bytes softLimit, hardLimit; } SetLimits;
_Static_assert(sizeof(SetLimits) == 24 && sizeof(Limits) == 32, "as in nvml.h");

static int file(const char *folder, const char *name, char *into) {
  snprintf(into, 4096, "%s/%s", folder, name);
  return access(into, F_OK);
}
static int read_file(const char *folder, const char *name, bytes *into) {
  char path[4096]; FILE *opened; int found;
  if (file(folder, name, path) || !(opened = fopen(path, "r"))) return 6;  /* NotFound */
  found = fscanf(opened, "%llu", into) == 1;
  fclose(opened);
  if (!found) *into = ~0ull;  /* "max" */
  return 0;
}
static int write_file(const char *folder, const char *name, bytes amount) {
  char path[4096]; FILE *opened;
  if (file(folder, name, path) || !(opened = fopen(path, "w"))) return 6;
  if (amount == ~0ull) fputs("max", opened); else fprintf(opened, "%llu", amount);
  return fclose(opened) ? 999 : 0;
}
static void count(const char *folder) {  /* how often a limit was set */
  char path[4096]; FILE *opened;
  file(folder, "sets", path);
  if ((opened = fopen(path, "a"))) { fputs("x", opened); fclose(opened); }
}
int nvmlDeviceSetMemoryLimits_v1(void *handle, SetLimits *limits) {
  char path[4096];
  if (access(limits->nameSpace, F_OK)) return 2;  /* InvalidArgument */
  if (!file(limits->nameSpace, "no-permission", path)) return 4;
  int code = write_file(limits->nameSpace, "dmem.max", limits->hardLimit);
  count(limits->nameSpace);
  return code ? code : write_file(limits->nameSpace, "dmem.min", limits->softLimit);
}
int nvmlDeviceGetMemoryLimits_v1(void *handle, Limits *limits) {
  int code = read_file(limits->nameSpace, "dmem.max", &limits->hardLimit);
  if (code) return code;
  read_file(limits->nameSpace, "dmem.min", &limits->softLimit);
  return read_file(limits->nameSpace, "dmem.current", &limits->currentUsed);
}
int allocate(const char *folder, bytes wanted) {  /* as cuMemAlloc of a process in this cgroup */
  bytes hard, used;
  if (read_file(folder, "dmem.max", &hard) || read_file(folder, "dmem.current", &used)) return 999;
  if (used + wanted > hard || used + wanted < used) return 2;
  return write_file(folder, "dmem.current", used + wanted);
}
int release(const char *folder, bytes wanted) {
  bytes used;
  if (read_file(folder, "dmem.current", &used) || wanted > used) return 999;
  return write_file(folder, "dmem.current", used - wanted);
}
"""
)


def cgroup(path: Path, *, dmem: bool = True, hard_mib: int | None = None) -> Path:
    """Make the directory of a cgroup, with the files that the kernel has in each where dmem is enabled."""
    path.mkdir(parents=True)
    if dmem:
        (path / "dmem.max").write_text("max" if hard_mib is None else str(hard_mib * MIB))
        (path / "dmem.min").write_text("0")
        (path / "dmem.current").write_text("0")
    return path


class LimitingLibrary:
    """The compiled library, and programs in cgroups that allocate through it."""

    def __init__(self, folder: Path) -> None:
        """Compile it into `folder`, of which it is loaded in place of the driver's."""
        compiled(folder, SOURCE)
        self._library = ctypes.CDLL(str(folder / NAME))
        for function in (self._library.allocate, self._library.release):
            function.argtypes = [ctypes.c_char_p, ctypes.c_ulonglong]

    def allocate(self, cgroup: Path, mib: int) -> int:
        """Have a program in a cgroup allocate memory; return CUDA's code."""
        code: int = self._library.allocate(bytes(cgroup), mib * MIB)
        return code

    def release(self, cgroup: Path, mib: int) -> int:
        """Have it free memory."""
        code: int = self._library.release(bytes(cgroup), mib * MIB)
        return code


def times_set(cgroup: Path) -> int:
    """Return how often a limit of this cgroup was set."""
    path = cgroup / "sets"
    return len(path.read_text()) if path.exists() else 0
