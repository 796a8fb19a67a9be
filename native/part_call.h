// Calls whose operands are parts of larger arrays, read where they lie.
#pragma once

#include <memory>

#include "calls.h"
#include "status.h"

namespace ferrule {

// Prepares the call with `factory`. Of each operand that its attribute `parts` names, the call sees a part: six
// integers and its dimensions for each, the operand's number, that of the operand with an index or -1, the part's first
// byte, the largest index and the bytes between the parts of two indices, then the rank, then the dimensions. An index
// below 0 counts as 0, one that is too large as the largest. The call does not see the indices, which are the last
// operands.
Result<std::unique_ptr<Prepared>> PrepareParts(const CallDesc& call, Factory factory);

// The call as it sees itself: with parts in the place of whole arrays, and without indices.
CallDesc AsSeen(const CallDesc& call);

}  // namespace ferrule
