// A current folder that was deleted.
#pragma once

namespace diptych {

// oneMKL's constructor ends a process that stands in such a folder, so before the libraries'
// constructors run the program steps out of it to /. This takes it back: relative paths fail then,
// absolute ones work.
void return_to_deleted_folder();

}  // namespace diptych
