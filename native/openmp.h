// OpenMP for oneDNN, on the threads of the pool: what GNU's compiler makes of a parallel region calls these functions
// in place of libgomp's. One set of threads in the process does all the work then; two, each spinning where the other
// is to work, keep one another from the processors, and how long libgomp's spin was decided by whoever loaded it first.
#pragma once

namespace ferrule {

// Lets a loaded library run its regions on the pool. False, and it is left as it was, where it needs more of OpenMP
// than there is here.
bool UsePoolForOpenMp(void* library);

// omp_set_num_threads for such a library: of the regions that the calling thread begins.
void SetOpenMpThreads(int count);

}  // namespace ferrule
