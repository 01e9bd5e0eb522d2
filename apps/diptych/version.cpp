// `diptych version`: what this binary is and was built with.
#include <fmt/format.h>
#include <torch/version.h>

#include "apps/diptych/verbs.h"
#include "lib/media/jpeg.h"

namespace diptych {
namespace {

constexpr const char* yes_or_no(bool value) {
  return value ? "yes" : "no";
}

int print_version() {
  fmt::print("diptych {}\n", DIPTYCH_VERSION);
  fmt::print("libtorch {}\n", TORCH_VERSION);
  if (DIPTYCH_HAVE_CUDA != 0) {
    fmt::print("CUDA yes, architectures {}\n", DIPTYCH_CUDA_ARCHITECTURES);
  } else {
    fmt::print("CUDA no (a CPU build)\n");
  }
  fmt::print("cuDNN attention {}\n", yes_or_no(DIPTYCH_HAVE_CUDNN != 0));
  fmt::print("libjpeg {}\n", yes_or_no(jpeg_supported()));
  fmt::print("utf8proc {}\n", yes_or_no(DIPTYCH_HAVE_UTF8PROC != 0));
  return 0;
}

}  // namespace

void add_version(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("version", "what this binary is and was built with");
  verb->footer("Example:\n  diptych version");
  verb->callback([&run] { run = [](Log&) { return print_version(); }; });
}

}  // namespace diptych
