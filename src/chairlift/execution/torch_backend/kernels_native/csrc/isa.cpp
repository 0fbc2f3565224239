// One instruction set's operations; compiled once per set with CHAIRLIFT_ISA as its name.
#include <cmath>
#include <cstdlib>

#include "table.h"

namespace CHAIRLIFT_ISA {

// Frees a thread's memory when the thread ends. No template of the standard library: what two instruction sets both
// instantiate is linked only once, perhaps with instructions that this processor lacks.
struct Memory {
  char* start = nullptr;
  int64_t num_bytes = 0;
  ~Memory() { std::free(start); }
};

// Memory of the calling thread, on cache lines; what it held before is gone.
static float* scratch(int64_t num_floats) {
  static thread_local Memory memory;
  if (4 * num_floats > memory.num_bytes) {
    std::free(memory.start);
    memory.num_bytes = (8 * num_floats + 63) / 64 * 64;
    memory.start = (char*)std::aligned_alloc(64, memory.num_bytes);
    if (!memory.start) std::abort();
  }
  return (float*)memory.start;
}

}  // namespace CHAIRLIFT_ISA

#include "argmax_tiles.h"
#include "attention.h"
#include "attention_tiles.h"
#include "linear_tiles.h"

namespace CHAIRLIFT_ISA {

extern const chairlift::Table table = {
    W,
#if defined(CHAIRLIFT_TILES)
    1,
#else
    0,
#endif
    {
        linear_item<FloatColumn>,
#if defined(CHAIRLIFT_TILES)
        linear_tiles_item<HalfBlock>,
        linear_tiles_item<NibbleTile>,
        linear_tiles_item<ByteBlock>,
        gated_tiles_item<HalfBlock>,
        gated_tiles_item<NibbleTile>,
        gated_tiles_item<ByteBlock>,
        argmax_tiles_item<HalfBlock>,
        argmax_tiles_item<NibbleTile>,
        argmax_tiles_item<ByteBlock>,
#else
        nullptr,
        linear_item<NibbleBlock>,
        linear_item<ByteBlock>,
        nullptr,
        nullptr,
        nullptr,
        nullptr,
        nullptr,
        nullptr,
#endif
        round_item,
        embed_item,
        take_item,
        norm_item,
        silu_mul_item,
        rotate_item,
#if defined(CHAIRLIFT_TILES)
        attention_tiles_item,
#else
        attention_item,
#endif
        merge_item,
    },
};

}  // namespace CHAIRLIFT_ISA
