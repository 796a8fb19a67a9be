// Copies of whole arrays: a large one is spread over the pool's threads and written past the caches.
#pragma once

#include <cstdint>

#include "thread_pool.h"

namespace ferrule {

// As memmove; the ranges may overlap. Runs on the caller's thread, with the pool's help above some megabytes.
void LargeCopy(ThreadPool& pool, void* to, const void* from, int64_t bytes);

// Is a result of so many bytes no longer in a cache when it is read next? Then it is better written past the caches: a
// plain store reads the line first, only to overwrite it.
bool PastCaches(int64_t bytes);

// A copy by one thread, past the caches; the ranges do not overlap.
void CopyPastCaches(void* to, const void* from, int64_t bytes);

}  // namespace ferrule
