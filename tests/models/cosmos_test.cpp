// The Cosmos-Predict2 transformer, without recordings of whole runs (cosmos_recorded_test.cpp).
#include "lib/models/cosmos/cosmos.h"

#include <fstream>
#include <set>

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/models/cosmos/frames.h"
#include "lib/models/cosmos/layout.h"
#include "lib/models/cosmos/memory.h"
#include "tests/models/cosmos_cases.h"
#include "tests/support/folder.h"
#include "tests/support/peak_bytes.h"
#include "tests/support/skip.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using namespace cosmos_cases;  // NOLINT

// A checkpoint's tensors as tables of shapes have them: "name<tab>1x2x3".
std::set<std::string> lines_of(const CosmosConfig& config) {
  std::set<std::string> lines;
  for (const TensorShape& tensor : cosmos_layout(config))
    lines.insert(fmt::format("{}\t{}", tensor.name, fmt::join(tensor.shape, "x")));
  return lines;
}

}  // namespace

TEST_CASE("cosmos: config.json") {
  const fs::path known = own_goldens() / "checkpoint_v2w/transformer/config.json";
  const CosmosConfig config = CosmosConfig::load(known);
  CHECK(config.width() == 24);
  CHECK(config.inner() == 96);
  CHECK(config.takes_frames());
  CHECK(config.patch_in() == 72);
  CHECK(config.patch_out() == 64);
  CHECK(config.text_embed_dim == 32);
  CHECK(config.rope_scale[1] == 3);
  CHECK(config.most_positions() == 128);

  const test::Folder folder;
  const CosmosConfig defaults = CosmosConfig::load(folder.write("empty.json", "{}"));
  CHECK(defaults.width() == 2048);
  CHECK_FALSE(defaults.takes_frames());
  CHECK(defaults.patch_in() == 68);

  const auto message = [&](const char* key, nlohmann::json value) {
    nlohmann::json json;
    std::ifstream(known) >> json;
    json[key] = std::move(value);
    const fs::path path = folder.write("config.json", json.dump());
    const std::string text = test::message_of([&] { CosmosConfig::load(path); });
    return text.starts_with(path.string()) ? text.substr(path.string().size() + 2) : text;
  };
  CHECK(message("in_channels", 16) == "no error");
  CHECK(message("in_channels", 18) ==
        "in_channels: found 18, expected out_channels, 16, or one more");
  CHECK(message("_class_name", "WanTransformer3DModel") ==
        "_class_name: found \"WanTransformer3DModel\", expected \"CosmosTransformer3DModel\"");
  CHECK(message("patch_size", {1, 1, 2}) == "patch_size: found [1,1,2], expected [1,2,2]");
  CHECK(message("extra_pos_embed_type", "learnable") ==
        "extra_pos_embed_type: found \"learnable\", expected null");
  CHECK(message("use_crossattn_projection", true) ==
        "use_crossattn_projection: found true, expected false");
  CHECK(message("img_context_dim_in", 1152) == "img_context_dim_in: found 1152, expected null");
  CHECK(message("controlnet_block_every_n", 7) ==
        "controlnet_block_every_n: found 7, expected null");
  CHECK(message("num_layers", 0) == "num_layers: 0 is out of range, expected 1 to 1000");
  CHECK(message("attention_head_dim", 13) ==
        "attention_head_dim: found 13, expected an even number");
  CHECK(message("attention_head_dim", 8) ==
        "attention_head_dim: 8 is out of range, expected 12 to 256");
  CHECK(message("rope_scale", {1, 2}) == "rope_scale: found [1,2], expected three numbers");
  CHECK(message("rope_scale", {1, 0, 2}) ==
        "rope_scale[1]: 0 is out of range, expected 0.001 to 1000");
  CHECK(message("max_size", {1, "2", 2}) == "max_size[0]: 1 is out of range, expected 2 to 65536");
  CHECK(message("concat_padding_mask", 1) ==
        "concat_padding_mask: found 1, expected true or false");
}

TEST_CASE("cosmos: the layout is what a checkpoint holds, and what is loaded") {
  for (const char* name : {"checkpoint_t2i", "checkpoint_v2w"}) {
    const fs::path folder = own_goldens() / name / "transformer";
    const Weights weights = Weights::open(folder, at::kCPU, at::kFloat);
    for (const TensorShape& tensor : cosmos_layout(CosmosConfig::load(folder / "config.json"))) {
      CAPTURE(tensor.name);
      CHECK(weights.shape(tensor.name) == tensor.shape);
      weights.check(tensor.name, tensor.shape);
    }
    CHECK(weights.unread().empty());
    CHECK(test::message_of([&] { load(folder); }) == "no error");
  }
}

TEST_CASE("cosmos: the layout of the released sizes, where the full recordings are" *
          doctest::test_suite("needs goldens")) {
  const fs::path shapes = full_goldens() / "real_shapes";
  if (!fs::exists(shapes)) return test::skip("the full recordings are not here");
  for (const auto& [file, channels] :
       {std::pair{"cosmos2_2B_t2i.tsv", 16}, std::pair{"cosmos2_2B_v2w.tsv", 17}}) {
    CAPTURE(file);
    std::set<std::string> expected;
    std::ifstream lines(shapes / file);
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) expected.insert(line);
    CHECK(expected.size() == 567);
    CosmosConfig config;
    config.in_channels = channels;
    CHECK(lines_of(config) == expected);
  }
}

TEST_CASE("cosmos: zero rows as one key are the same as all rows of a text") {
  const CosmosTransformer model = dummy(small_config());
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{1}, {512}, {21, 27}, {1, 512}, {511, 98}, {300, 2, 40}}) {
    const Inputs inputs = noise_inputs(model.config, lengths);
    // Zero rows that are given are rows of their own: nothing is collapsed.
    Inputs plain = inputs;
    for (Tensor& rows : plain.texts)
      rows = at::constant_pad_nd(rows, {0, 0, 0, kCosmosTextRows - rows.size(0)});
    const Tensor expected = run(model, plain).output;
    CHECK(expected.std().item<double>() > 0.1);
    for (const Options& options : all_ways())
      CHECK(relative_norm(run(model, inputs, options).output, expected) < 2e-6);
    const Tensor last = model.make_context(plain.texts, {}).text[0][0][511];
    CHECK(last.eq(0).all().item<bool>() == (lengths[0] < 512));
  }
  // Without zero rows the result is another.
  Inputs cut = noise_inputs(model.config, {20});
  const Tensor padded = run(model, cut).output;
  const Kernels kernels;
  const CosmosContext alone = model.make_context(cut.texts, kernels, 20);
  CHECK(alone.texts.front().shared == 0);
  const CosmosPlan plan = model.plan(alone, cut.clip, SharedKeys::weighted);
  const CosmosTime time = model.embed_time(plan, cut.timesteps, kernels);
  Tensor x = model.embed_latents(plan, cut.latents, kernels);
  x = model.run_blocks(plan, alone, time, x, *make_attention("auto", at::kCPU), kernels);
  CHECK(relative_norm(model.head(plan, time, x, kernels), padded) > 1e-3);
}

TEST_CASE("cosmos: samples of one forward do not see each other") {
  const CosmosTransformer model = dummy(small_config());
  const Inputs both = noise_inputs(model.config, {30, 5});
  const Tensor expected = run(model, both).output;
  CHECK(relative_norm(expected[0], expected[1]) > 0.1);
  const Kernels kernels;
  const CosmosContext context = model.make_context(both.texts, kernels);
  const auto attention = make_attention("auto", at::kCPU);
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    Inputs alone = both;
    alone.texts = {both.texts[static_cast<std::size_t>(sample)]};
    alone.latents = both.latents.narrow(0, sample, 1);
    alone.timesteps = both.timesteps.narrow(0, sample, 1);
    CHECK(relative_norm(run(model, alone).output[0], expected[sample]) < 2e-6);
    // A part of a context gives the same.
    const CosmosContext part = context.slice(sample, 1);
    for (const SharedKeys shared : {SharedKeys::weighted, SharedKeys::repeated}) {
      const CosmosPlan plan = model.plan(part, alone.clip, shared);
      const CosmosTime time = model.embed_time(plan, alone.timesteps, kernels);
      Tensor x = model.embed_latents(plan, alone.latents, kernels);
      x = model.run_blocks(plan, part, time, x, *attention, kernels);
      CHECK(relative_norm(model.head(plan, time, x, kernels)[0], expected[sample]) < 2e-6);
    }
  }
  CHECK_THROWS_AS(context.slice(1, 2), c10::Error);
}

TEST_CASE("cosmos: times of frames, masks and fps") {
  const CosmosTransformer model = dummy(small_config());
  Inputs inputs = noise_inputs(model.config, {30, 5});
  inputs.clip.known_frames = 0;
  inputs.timesteps = at::full({2}, 0.7F);
  const Tensor expected = run(model, inputs).output;
  Inputs changed = inputs;
  changed.timesteps = at::full({2, 3}, 0.7F);
  CHECK(run(model, changed).output.equal(expected));
  changed.timesteps[0][0] = 0.1F;
  const Outputs other = run(model, changed);
  CHECK(relative_norm(other.output[0], expected[0]) > 1e-3);
  CHECK(relative_norm(other.output[1], expected[1]) < 1e-6);
  CHECK(other.seen.at("temb").sizes() == at::IntArrayRef({6, 192}));
  CHECK(other.seen.at("block00.norm1_gate").sizes() == at::IntArrayRef({2, 18, 64}));

  changed = inputs;
  changed.clip.known_frames = 2;
  CHECK(relative_norm(run(model, changed).output, expected) > 1e-3);
  changed = inputs;
  changed.clip.fps = 24.0;
  const Tensor at_base = run(model, changed).output;
  CHECK(relative_norm(at_base, expected) > 1e-5);
  changed.clip.fps.reset();  // a picture's frames are as far apart as those of the base rate
  CHECK(run(model, changed).output.equal(at_base));
  changed = inputs;
  changed.clip.padding_mask = at::zeros({32, 48});
  CHECK(run(model, changed).output.equal(expected));
  changed.clip.padding_mask.narrow(0, 16, 16).fill_(1);
  CHECK(relative_norm(run(model, changed).output, expected) > 1e-3);
}

TEST_CASE("cosmos: blocks on the host give the same bits") {
  const CosmosConfig config = small_config();
  const Inputs inputs = noise_inputs(config, {30, 5});
  for (const Quantization kind : {Quantization::none, Quantization::fp8, Quantization::int8}) {
    Options options;
    options.quantization = kind;
    const Tensor expected = run(dummy(config, options), inputs, options).output;
    CHECK(expected.std().item<double>() > 0.1);
    for (const BlockOffload& offload : {BlockOffload{0, 1}, {0, 3}, {2, 2}, {5, 2}}) {
      options.offload = offload;
      const CosmosTransformer model = dummy(config, options);
      CHECK(model.blocks.streams() == (offload.resident < 5));
      CHECK(run(model, inputs, options).output.equal(expected));
      CHECK(run(model, inputs, options).output.equal(expected));
    }
  }
}

TEST_CASE("cosmos: quantised matrices and bfloat16 stay near float32") {
  const CosmosConfig config = small_config();
  const Inputs inputs = noise_inputs(config, {30, 5});
  const Tensor expected = run(dummy(config), inputs).output;
  const auto error = [&](Quantization kind) {
    Options options;
    options.quantization = kind;
    return relative_norm(run(dummy(config, options), inputs, options).output, expected);
  };
  CHECK(error(Quantization::int8) < 0.02);
  CHECK(error(Quantization::fp8) < 0.1);

  // Dummy weights depend on the dtype, so bfloat16 is held to a checkpoint.
  Options narrow;
  narrow.dtype = at::kBFloat16;
  const fs::path folder = own_goldens() / "checkpoint_v2w/transformer";
  const CosmosTransformer wide_model = load(folder), narrow_model = load(folder, narrow);
  const Inputs noise = noise_inputs(wide_model.config, {30, 5});
  const Outputs found = run(narrow_model, noise, narrow);
  CHECK((found.output.scalar_type() == at::kBFloat16));
  const double difference = relative_norm(found.output, run(wide_model, noise).output);
  MESSAGE("bfloat16 against float32: ", difference);
  CHECK(difference > 0);
  CHECK(difference < 0.03);
}

TEST_CASE("cosmos: what does not fit is refused") {
  CosmosConfig config = small_config();
  config.max_size = {2, 6, 8};
  const CosmosTransformer model = dummy(config);
  const Kernels kernels;
  const Inputs inputs = noise_inputs(config, {3});
  const CosmosContext context = model.make_context(inputs.texts, kernels);
  const auto plan = [&](const CosmosClip& clip) {
    return model.plan(context, clip, SharedKeys::weighted);
  };
  CHECK(plan({{3, 8, 6}, {}, 0, {}}).rows() == 36);
  CHECK(test::message_of([&] {
          plan({{3, 4, 10}, {}, 0, {}});
        }) == "cosmos: 5 positions along the width, expected at most 4");
  CHECK_THROWS_AS(plan({{3, 5, 6}, {}, 0, {}}), c10::Error);
  CHECK_THROWS_AS(plan({{3, 4, 6}, 0.0, 0, {}}), c10::Error);
  CHECK_THROWS_AS(plan({{3, 4, 6}, 16.0, 4, {}}), c10::Error);
  const CosmosPlan good = plan(inputs.clip);
  CHECK_THROWS_AS(model.embed_time(good, at::ones({2}), kernels), c10::Error);
  CHECK_THROWS_AS(model.embed_time(good, at::ones({1, 2}), kernels), c10::Error);
  CHECK_THROWS_AS(model.embed_latents(plan({{3, 4, 4}, {}, 0, {}}), inputs.latents, kernels),
                  c10::Error);
  CHECK_THROWS_AS(model.make_context({at::ones({513, 48})}, kernels), c10::Error);
  CHECK_THROWS_AS(model.make_context({at::ones({5, 40})}, kernels), c10::Error);
  CHECK_THROWS_AS(model.make_context({}, kernels), c10::Error);
  config.in_channels = 4;
  CHECK_THROWS_AS(dummy(config).plan(context, {{3, 4, 6}, {}, 1, {}}, SharedKeys::weighted),
                  c10::Error);
}

TEST_CASE("cosmos: frames that are given, and levels that are cut off") {
  CHECK(cosmos_known_frames(1, 93) == 1);
  CHECK(cosmos_known_frames(4, 93) == 1);
  CHECK(cosmos_known_frames(5, 93) == 2);
  CHECK(cosmos_known_frames(200, 93) == 24);
  CHECK_THROWS_AS(cosmos_known_frames(0, 93), c10::Error);
  const Tensor frames = at::tensor({-2.0F, -1.0F, 1.0F, 3.0F, 0.0F, 0.9999F}).view({3, 1, 1, 2});
  const Tensor levels = cosmos_frames_to_uint8(frames);
  CHECK(levels.sizes() == at::IntArrayRef({1, 1, 2, 3}));
  CHECK(levels.permute({3, 0, 1, 2})
            .flatten()
            .equal(at::tensor({0, 0, 255, 255, 127, 254}, at::kInt).to(at::kByte)));
}

TEST_CASE("cosmos: the memory of a forward is what memory.h says") {
  CosmosConfig config = small_config();
  config.num_attention_heads = 4;
  Inputs inputs = noise_inputs(config, {30, 5});
  inputs.clip.size = {3, 24, 40};
  inputs.latents = at::ones({2, 4, 3, 24, 40});
  const Kernels kernels;
  const CosmosForward forward = {inputs.clip.size, 2, 2, 31, SharedKeys::weighted, true};
  const auto attention = make_attention("auto", at::kCPU);
  const auto bytes_of = [](const std::vector<Tensor>& tensors) {
    std::size_t bytes = 0;
    for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
    return static_cast<std::int64_t>(bytes);
  };
  for (const MatrixFormat& format : {MatrixFormat{at::kFloat, Quantization::none},
                                     {at::kFloat, Quantization::fp8},
                                     {at::kFloat, Quantization::int8},
                                     {at::kBFloat16, Quantization::none},
                                     {at::kBFloat16, Quantization::fp8}}) {
    Options options;
    options.dtype = format.dtype;
    options.quantization = format.quantization;
    const CosmosTransformer model = dummy(config, options);
    const CosmosContext context = model.make_context(inputs.texts, kernels);
    CHECK(bytes_of(context.text) == cosmos_context_bytes(config, forward, format.dtype));
    const CosmosPlan plan = model.plan(context, inputs.clip, SharedKeys::weighted);
    CHECK(bytes_of({plan.masks, plan.cos, plan.sin, plan.slots}) ==
          cosmos_plan_bytes(config, forward, format.dtype));
    const std::int64_t found = peak_bytes([&] {
      const CosmosTime time = model.embed_time(plan, inputs.timesteps, kernels);
      Tensor x = model.embed_latents(plan, inputs.latents, kernels);
      x = model.run_blocks(plan, context, time, x, *attention, kernels);
      model.head(plan, time, x, kernels);
    });
    const std::int64_t planned = cosmos_forward_bytes(config, forward, format);
    CAPTURE(found);
    CAPTURE(planned);
    CHECK(static_cast<double>(found) < 1.02 * static_cast<double>(planned));
    CHECK(static_cast<double>(found) > 0.95 * static_cast<double>(planned));
  }
}

TEST_CASE("cosmos: the bytes of the weights") {
  for (const std::int64_t channels : {16, 17}) {
    CosmosConfig config;
    config.in_channels = channels;
    std::int64_t numbers = 0;
    for (const TensorShape& tensor : cosmos_layout(config)) {
      std::int64_t count = 1;
      for (const std::int64_t size : tensor.shape) count *= size;
      numbers += count;
    }
    const MatrixFormat plain = {at::kBFloat16, Quantization::none};
    CHECK(cosmos_weight_bytes(config, plain) == 2 * numbers);
    // One block on the device beside two places.
    const std::int64_t block = CosmosBlock::matrix_bytes(BlockPart::step, config, plain) +
                               CosmosBlock::matrix_bytes(BlockPart::context, config, plain);
    const std::int64_t places = 2 * CosmosBlock::matrix_bytes(BlockPart::step, config, plain);
    CHECK(cosmos_weight_bytes(config, plain, BlockOffload{1, 2}) ==
          2 * numbers - 27 * block + places);
    CHECK(cosmos_weight_bytes(config, plain, BlockOffload{28, 2}) == 2 * numbers);
    const double quantised =
        static_cast<double>(cosmos_weight_bytes(config, {at::kBFloat16, Quantization::fp8}));
    CHECK(quantised > 1.0 * static_cast<double>(numbers));
    CHECK(quantised < 1.15 * static_cast<double>(numbers));
  }
}

}  // namespace diptych
