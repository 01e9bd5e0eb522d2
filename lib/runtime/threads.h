// The threads that libtorch computes with on the CPU.
#pragma once

namespace diptych {

// Throws RunError where the system does not start as many as libtorch takes: libgomp, which would
// start them later, ends the process where that fails.
void require_threads();

}  // namespace diptych
