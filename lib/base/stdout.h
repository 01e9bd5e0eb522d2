// Results go to stdout through stdio; whether they arrive is known only after a flush.
#pragma once

namespace diptych {

// Throws Interrupted(SIGPIPE) where the reader has gone (`diptych ... | head -1`), as if that
// signal had ended the run, and RunError where stdout cannot be written. Also for what failed
// earlier.
void flush_stdout();

// Throws what flush_stdout() does; `error` is the errno of a failed write, 0 where unknown.
[[noreturn]] void stdout_failed(int error);

}  // namespace diptych
