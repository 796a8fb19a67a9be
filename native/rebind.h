// Makes a library that is loaded call other functions than it was linked to.
#pragma once

#include <functional>
#include <string_view>

namespace ferrule {

// For each function that `library` (of dlopen) takes from others, `other` says what it is to call instead: null for the
// same as before. Returns false, and nothing is changed, where `fits` says no to one of the names, where none is
// changed, and where the system or the format of the library does not allow it. Before the library is used.
bool Rebind(void* library, const std::function<void*(std::string_view name)>& other,
            const std::function<bool(std::string_view name)>& fits);

}  // namespace ferrule
