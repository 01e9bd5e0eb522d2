// The threads that libtorch computes with on the CPU.
#pragma once

namespace diptych {

// Throws RunError where the system does not start as many as libtorch takes: libgomp, which would
// start them later, ends the process where that fails.
void require_threads();

// Calls a vector function of MKL, which sets all of them up at the first call. Where several
// threads make that one together, a thread may get less exact kernels for it: in one process in
// twenty the second half of a first exp was off by 4e-5 of its value (libtorch 2.11, two threads).
// Call it before anything else is computed.
void set_up_vector_functions();

}  // namespace diptych
