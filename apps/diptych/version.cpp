// `diptych version`: what this binary is and was built with.
#include <array>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "apps/diptych/verbs.h"
#include "lib/base/clip_formats.h"
#include "lib/base/picture_formats.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;

// One for each library of pictures that a build may lack.
constexpr std::array kOptionalFormats = {PictureFormat::jpeg, PictureFormat::webp,
                                         PictureFormat::bmp};

bool have_libav() {
  return facts_of(ClipFormat::mp4).built_in;
}

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
  for (const PictureFormat format : kOptionalFormats)
    fmt::print("{} {}\n", facts_of(format).library, yes_or_no(facts_of(format).built_in));
  fmt::print("libav {}\n", yes_or_no(have_libav()));
  fmt::print("utf8proc {}\n", yes_or_no(DIPTYCH_HAVE_UTF8PROC != 0));
  return 0;
}

int print_json() {
  const bool cuda = DIPTYCH_HAVE_CUDA != 0;
  Json report = {{"diptych", DIPTYCH_VERSION},
                 {"libtorch", TORCH_VERSION},
                 {"cuda", cuda},
                 {"cuda_architectures", cuda ? DIPTYCH_CUDA_ARCHITECTURES : ""},
                 {"cudnn_attention", DIPTYCH_HAVE_CUDNN != 0},
                 {"utf8proc", DIPTYCH_HAVE_UTF8PROC != 0}};
  for (const PictureFormat format : kOptionalFormats)
    report[std::string(facts_of(format).library)] = facts_of(format).built_in;
  report["libav"] = have_libav();
  fmt::print("{}\n", report.dump(2));
  return 0;
}

}  // namespace

void add_version(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("version", "what this binary is and was built with");
  const auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "the same as JSON on stdout")->envname("DIPTYCH_JSON");
  verb->footer(
      "Keys of --json: diptych and libtorch (versions), cuda_architectures (a text, empty without\n"
      "CUDA), and true or false for cuda, cudnn_attention, utf8proc, libjpeg, libwebp,\n"
      "stb_image, libav.\n"
      "Example:\n  diptych version");
  verb->callback(
      [json, &run] { run = [json](Log&) { return *json ? print_json() : print_version(); }; });
}

}  // namespace diptych
