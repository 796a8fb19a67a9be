// PJRT_Error: a Status on the other side of the C border.
#pragma once

#include <string_view>

#include "pjrt_abi.h"
#include "status.h"

namespace ferrule {

// A new error object for the caller to destroy; null for success.
PJRT_Error* NewError(Status status) noexcept;

// What an error object says; success for null.
Status StatusOf(const PJRT_Error* error);

// A status from a code and text given by the caller. A code outside the enum becomes UNKNOWN.
Status StatusFrom(int code, std::string_view message);

// The void entries of the table, which cannot go through Entry<>.
void ErrorDestroy(PJRT_Error_Destroy_Args* args) noexcept;
void ErrorMessage(PJRT_Error_Message_Args* args) noexcept;

}  // namespace ferrule
