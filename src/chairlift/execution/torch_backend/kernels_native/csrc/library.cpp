// What Python calls: which instruction sets there are, and a sequence of operations as a body for worker threads.
#include <cstring>

#include "table.h"

namespace generic {
extern const chairlift::Table table;
}
namespace wide {
extern const chairlift::Table table;
}
namespace tiles {
extern const chairlift::Table table;
}
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace avx2 {
extern const chairlift::Table table;
}
namespace avx512 {
extern const chairlift::Table table;
}
#if defined(CHAIRLIFT_HAS_amx)
namespace amx {
extern const chairlift::Table table;
}

// Whether there are tiles, and the system lets this process have them: their 8 KiB are saved only for who asked.
static bool may_use_tiles() {
#if defined(__linux__)
  unsigned eax, ebx, ecx, edx = 0;
  const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25;  // of bfloat16, tiles, of int8
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & needed) != needed) return false;
  const long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}
#endif
#endif

#define CHAIRLIFT_PUBLIC extern "C" __attribute__((visibility("default")))

// The table of an instruction set, or null if this processor or this build lacks it.
CHAIRLIFT_PUBLIC const chairlift::Table* chairlift_table(const char* name) {
  if (!std::strcmp(name, "generic")) return &generic::table;
  if (!std::strcmp(name, "tiles")) return &tiles::table;  // the same with tiles in loops
  if (!std::strcmp(name, "wide")) return &wide::table;  // sixteen lanes without instructions of its own, for tests
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!std::strcmp(name, "avx2") && has_avx2) return &avx2::table;
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (!std::strcmp(name, "avx512") && has_avx512) return &avx512::table;
#if defined(CHAIRLIFT_HAS_amx)
  if (!std::strcmp(name, "amx") && has_avx512 && __builtin_cpu_supports("avx512bf16") && may_use_tiles())
    return &amx::table;
#endif
#endif
  return nullptr;
}

CHAIRLIFT_PUBLIC void chairlift_run_sequence(int64_t arguments) { chairlift::run_sequence((const int64_t*)arguments); }

// Of the sources that this library was made from.
CHAIRLIFT_PUBLIC const char* chairlift_source_digest() { return CHAIRLIFT_SOURCE_DIGEST; }
