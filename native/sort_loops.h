// The innermost loops of sorts for this processor.
#pragma once

#include "sort_loops_tables.h"

namespace ferrule {

// U is uint32_t or uint64_t.
template <class U>
const SortLoops<U>& ChosenSortLoops();

}  // namespace ferrule
