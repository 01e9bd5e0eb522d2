#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/pipelines/mot/tuning.h"
#include "lib/runtime/launch_times.h"
#include "lib/runtime/runtime.h"
#include "lib/session/make_runtime.h"
#include "lib/tuning/file.h"

namespace diptych {
namespace {

const at::Device kGpu(at::kCUDA, 0);

}  // namespace

TEST_CASE("launch_milliseconds: more work takes longer, and each work is done") {
  const Tensor small = at::zeros({1 << 10}, at::TensorOptions(kGpu)),
               large = at::zeros({1 << 26}, at::TensorOptions(kGpu));
  const std::function<void()> few[] = {[&] { small.add_(1); }};
  const std::function<void()> many[] = {[&] { large.add_(1); }, [&] { small.add_(1); }};
  const double short_time = launch_milliseconds(few, 5, kGpu);
  CHECK(short_time > 0);
  // Once ahead of the graph, then 16 times in each of 2 + 5 replays.
  CHECK(small[0].item<float>() == 1 + 7 * 16);
  CHECK(launch_milliseconds(many, 5, kGpu) > 2 * short_time);
  CHECK(large[5].item<float>() == 1 + 7 * 8);
  CHECK(small[7].item<float>() == 1 + 7 * 16 + 1 + 7 * 8);
}

TEST_CASE("what is measured covers the rows of the sizes, and is a file that runs take") {
  MotTuning tuning;
  tuning.llm.hidden_size = 512;
  tuning.llm.num_attention_heads = 4;
  tuning.llm.num_key_value_heads = 2;
  tuning.llm.intermediate_size = 1024;
  tuning.picture_rows = {144, 256};
  tuning.repeats = 2;
  Log quiet(LogLevel::quiet);
  Progress progress(quiet, ProgressStyle::none);
  TuningFile file;
  file.device = tuned_device(kGpu);
  file.table = measure_mot(tuning, kGpu, progress);
  const bool fp8 = file.device.major * 10 + file.device.minor >= 89;
  for (const std::int64_t rows : {2, 8, 100, 144, 512, 768}) {
    CAPTURE(rows);
    CHECK(file.table.find(TunedKernel::linear_fp8, {1024, 512, 0}, rows).has_value() == fp8);
    CHECK(file.table.find(TunedKernel::linear_int8, {2048, 512, 0}, rows).has_value() ==
          (rows <= 8 || has_mixed_kernel(kGpu)));
    CHECK(file.table.find(TunedKernel::gated_linear, {1024, 512, 0}, rows).has_value() ==
          has_gated_kernel(kGpu));
    CHECK(file.table.find(TunedKernel::add_rms_norm, {512, 0, 0}, rows).has_value());
    CHECK(file.table.find(TunedKernel::silu_mul_e4m3, {1024, 0, 0}, rows).has_value() == fp8);
    CHECK(file.table.find(TunedKernel::quantize_rows, {512, 0, 0}, rows).has_value() == fp8);
    CHECK(file.table.find(TunedKernel::attention, {4, 2, 128}, rows).has_value() == (rows <= 256));
  }
  for (const TunedClass& tuned : file.table.classes()) {
    CAPTURE(info_of(tuned.kernel).name);
    REQUIRE_FALSE(tuned.measured.empty());
    for (const TunedTimes& times : tuned.measured)
      CHECK(times.milliseconds[static_cast<std::size_t>(tuned.choice)].value_or(0) > 0);
  }
  const TuningFile read = parse_tuning(tuning_text(file), "t.json", file.device);
  CHECK(read.table.hash() == file.table.hash());
}

TEST_CASE("a run takes the tuning of its folder, and refuses that of another GPU") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / fmt::format("tuning_gpu_{}", getpid());
  fs::create_directory(folder);
  const auto removed = std::shared_ptr<void>(nullptr, [&](void*) { fs::remove_all(folder); });
  TuningFile file;
  file.device = tuned_device(kGpu);
  file.table.add({TunedKernel::add_rms_norm, {3584, 0, 0}, 1, 99, 2, {}});
  const fs::path path = folder / tuning_file_name(file.device);
  std::ofstream(path) << tuning_text(file);
  Log quiet(LogLevel::quiet);
  RunConfig config;
  config.device = {DeviceChoice::Kind::cuda};
  config.tuned_config_dir = folder;
  Runtime made = make_runtime(config, quiet);
  const Runtime runtime = std::move(made);
  CHECK(runtime.tuning.name() == file.table.hash());
  REQUIRE(runtime.kernels.tuning != nullptr);
  CHECK(runtime.kernels.tuning == runtime.tuning.table());
  CHECK(runtime.kernels.tuning->find(TunedKernel::add_rms_norm, {3584, 0, 0}, 50) == 2);
  config.dtype = DtypeChoice::float32;  // nothing was measured in it
  CHECK(make_runtime(config, quiet).kernels.tuning == nullptr);
  config.dtype = DtypeChoice::automatic;
  file.device.minor += 1;
  std::ofstream(path) << tuning_text(file);
  CHECK_THROWS_WITH_AS(make_runtime(config, quiet),
                       doctest::Contains("json: compute_capability: found "), InputError);
  config.tuned_config_dir = folder / "none";
  CHECK_THROWS_WITH_AS(make_runtime(config, quiet), doctest::Contains("expected a folder"),
                       InputError);
}

}  // namespace diptych
