// stdin, stdout and stderr where the parent has closed some of them.
#pragma once

namespace diptych {

// Without it, the first file that is opened would become stdout or stderr.
void keep_standard_streams();

}  // namespace diptych
