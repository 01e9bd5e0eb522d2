// The text encoder where memory of the device is short, for both kinds of devices.
#pragma once

#include <doctest/doctest.h>

#include "lib/pipelines/dit/texts.h"
#include "tests/models/umt5_inputs.h"

namespace diptych::dit_texts_cases {

inline void check_short_of_room(at::Device device) {
  using namespace umt5_inputs;
  const test::Folder folder;
  Runtime runtime;
  runtime.device = device;
  const Weights weights = Weights::open(whole_weights("wan", folder), device, at::kFloat);
  const Weights file = recorded(kGoldens / "wan" / "text_encode.safetensors");
  const TokenIds ids = ids_of(get(file, "prompt0.ids", at::kLong));
  const Tensor expected = get(file, "prompt0.embeds");

  Log log(LogLevel::quiet);
  Progress progress(log, ProgressStyle::none);
  const DitTexts sizes({}, config_of("wan"), weights, runtime);
  const std::int64_t needed = sizes.bytes({ids});
  CHECK(needed > umt5_weight_bytes(config_of("wan"), at::kFloat));
  // A first run, as cuBLAS keeps a workspace.
  DitTexts({}, config_of("wan"), weights, runtime).encode({ids}, {}, log, progress);
  for (const auto& [room, fits] : {std::pair<std::optional<std::int64_t>, bool>{{}, true},
                                   {needed, true},
                                   {needed - 1, false},
                                   {-1, false}}) {
    CAPTURE(room.value_or(0));
    DitTexts texts({}, config_of("wan"), weights, runtime);
    reset_peak_memory(device);
    const std::uint64_t before = peak_tensor_bytes(device);
    texts.encode({ids}, room, log, progress);
    const auto taken = static_cast<std::int64_t>(peak_tensor_bytes(device) - before);
    if (device.is_cuda()) CHECK((taken > 0) == fits);
    CHECK(taken <= needed * 11 / 10);  // the allocator rounds small tensors up
    CHECK(texts.rows(ids).is_cpu());
    CHECK(relative_norm(texts.rows(ids), expected) < 1e-5);
    CHECK(texts.bytes({ids}) == 0);  // kept
  }
}

}  // namespace diptych::dit_texts_cases
