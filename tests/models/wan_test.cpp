// Recorded values: golden cases of Wan, run with diffusers (tests/goldens/wan).
#include "lib/models/wan/wan.h"

#include <fstream>
#include <set>

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/models/wan/layout.h"
#include "lib/tensor/safetensors.h"
#include "tests/models/wan_cases.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using namespace wan_cases;  // NOLINT

// A recorded step of one call: which branches, and the tensors' prefix.
struct Call {
  std::int64_t step = 0;
  std::string branch;  // cond, uncond or batch
  std::string prefix() const { return fmt::format("step{:03}.{}.", step, branch); }
};

std::vector<Call> calls_of(const NamedTensors& recorded) {
  std::vector<Call> calls;
  for (std::int64_t step = 0; step < 100; ++step) {
    for (const char* branch : {"cond", "uncond", "batch"}) {
      const Call call{step, branch};
      const auto found = recorded.lower_bound(call.prefix());
      if (found != recorded.end() && found->first.starts_with(call.prefix())) calls.push_back(call);
    }
  }
  return calls;
}

struct Case {
  nlohmann::json json;
  NamedTensors inputs, expected;

  static Case read(const fs::path& folder) {
    return {test::case_json(folder), read_trace(folder / "inputs.safetensors"),
            read_trace(folder / "expected.safetensors")};
  }

  Tensor latents(std::int64_t step) const {
    const Tensor x = step == 0 ? inputs.at("initial_latents")
                               : expected.at(fmt::format("step{:03}.latent", step - 1));
    if (!expected.contains("image.condition")) return x;
    const Tensor& condition = expected.at("image.condition");
    if (json["task"] == "i2v") return at::cat({x, condition}, 1);
    const Tensor& mask = expected.at("image.first_frame_mask");
    return (1 - mask) * condition + mask * x;
  }

  Inputs of(const Call& call) const {
    Inputs made;
    const auto add_text = [&](const char* name) {
      made.texts.rows.push_back(expected.at(name)[0]);
    };
    if (call.branch != "cond") add_text("text.negative_prompt_embeds_valid_rows");
    if (call.branch != "uncond") add_text("text.prompt_embeds_valid_rows");
    if (expected.contains("image.embeds")) made.texts.image = expected.at("image.embeds")[0];
    const auto samples = static_cast<std::int64_t>(made.texts.rows.size());
    made.latents = latents(call.step).expand({samples, -1, -1, -1, -1});
    const auto tokens = expected.find(fmt::format("step{:03}.token_timesteps", call.step));
    if (tokens != expected.end()) {
      made.timesteps = tokens->second.expand({samples, -1}).contiguous();
    } else {
      made.timesteps =
          at::full({samples}, expected.at(fmt::format("step{:03}.t", call.step)).item<float>());
    }
    return made;
  }

  Tensor velocity(const Call& call) const {
    const auto of = [&](const char* name) {
      return expected.at(fmt::format("step{:03}.{}", call.step, name));
    };
    if (call.branch == "batch") return at::cat({of("v_uncond"), of("v_cond")});
    return of(call.branch == "cond" ? "v_cond" : "v_uncond");
  }
};

// Every recorded tensor of the calls of that checkpoint's transformer.
void check_calls(const Case& recorded, const WanTransformer& model, const Options& options,
                 const char* module = "transformer") {
  const double tolerance = recorded.json["tolerance"]["step_tensors"];
  std::size_t compared = 0;
  for (const Call& call : calls_of(recorded.expected)) {
    const auto step = static_cast<std::size_t>(call.step);
    if (recorded.json["steps_info"][step]["model"] != module) continue;
    const Outputs outputs = run(model, recorded.of(call), options);
    CAPTURE(call.prefix());
    CHECK(worst(outputs.velocity, recorded.velocity(call)) < tolerance);
    for (const auto& [name, value] : recorded.expected) {
      if (!name.starts_with(call.prefix())) continue;
      CAPTURE(name);
      CHECK(worst(outputs.seen.at(name.substr(call.prefix().size())), value) < tolerance);
      ++compared;
    }
  }
  CHECK(compared >= 15);
}

// Equal keys as one and as many.
std::vector<Options> both_ways() {
  Options repeated;
  repeated.shared = SharedKeys::repeated;
  return {{}, repeated};
}

}  // namespace

TEST_CASE("wan: config.json") {
  const fs::path known = own_goldens() / "checkpoint_i2v/transformer/config.json";
  const WanConfig config = WanConfig::load(known);
  CHECK(config.width() == 24);
  CHECK(config.attention_head_dim == 12);
  CHECK(config.in_channels == 36);
  CHECK(config.patch_in() == 144);
  CHECK(config.patch_out() == 64);
  CHECK(config.image_dim == 20);
  CHECK(config.text_dim == 32);
  CHECK_FALSE(config.pos_embed_seq_len.has_value());

  const test::Folder folder;
  const WanConfig defaults = WanConfig::load(folder.write("empty.json", "{}"));
  CHECK(defaults.width() == 5120);
  CHECK(defaults.num_layers == 40);
  CHECK_FALSE(defaults.image_dim.has_value());

  const auto message = [&](const char* key, nlohmann::json value) {
    nlohmann::json json;
    std::ifstream(known) >> json;
    json[key] = std::move(value);
    const fs::path path = folder.write("config.json", json.dump());
    const std::string text = test::message_of([&] { WanConfig::load(path); });
    return text.starts_with(path.string()) ? text.substr(path.string().size() + 2) : text;
  };
  CHECK(message("eps", 1e-6) == "no error");
  CHECK(message("qk_norm", "rms_norm") ==
        "qk_norm: found \"rms_norm\", expected \"rms_norm_across_heads\"");
  CHECK(message("patch_size", {1, 1, 2}) == "patch_size: found [1,1,2], expected [1,2,2]");
  CHECK(message("num_layers", 0) == "num_layers: 0 is out of range, expected 1 to 1000");
  CHECK(message("ffn_dim", "wide") == "ffn_dim: found \"wide\", expected a whole number");
  CHECK(message("attention_head_dim", 13) ==
        "attention_head_dim: found 13, expected an even number");
  CHECK(message("cross_attn_norm", 1) == "cross_attn_norm: found 1, expected true or false");
  CHECK(message("added_kv_proj_dim", 20) ==
        "added_kv_proj_dim: found 20, expected 24, the width of the model");
  CHECK(message("image_dim", nullptr) ==
        "added_kv_proj_dim: found 24, expected none, as there is no image_dim");
  CHECK(message("added_kv_proj_dim", nullptr) ==
        "added_kv_proj_dim: found none, expected 24, the width of the model");
}

TEST_CASE("wan: the layout is what a checkpoint holds, and what is loaded") {
  for (const char* name : {"checkpoint", "checkpoint_i2v"}) {
    const fs::path folder = own_goldens() / name / "transformer";
    const Weights weights = Weights::open(folder, at::kCPU, at::kFloat);
    for (const TensorShape& tensor : wan_layout(WanConfig::load(folder / "config.json"))) {
      CAPTURE(tensor.name);
      CHECK(weights.shape(tensor.name) == tensor.shape);
      weights.check(tensor.name, tensor.shape);
    }
    CHECK(weights.unread().empty());
  }
}

TEST_CASE("wan: a file may hold the norm that no model uses, and nothing else beyond its config") {
  for (const char* name : {"checkpoint", "checkpoint_i2v"}) {
    CAPTURE(name);
    const fs::path folder = own_goldens() / name / "transformer";
    WanConfig config = WanConfig::load(folder / "config.json");
    const Weights stored = Weights::open(folder, at::kCPU, at::kFloat);
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const auto& [tensor, shape] : wan_layout(config))
      tensors.emplace_back(tensor, stored.get(tensor, shape));
    if (config.image_dim) {
      for (std::int64_t i = 0; i < config.num_layers; ++i)
        tensors.emplace_back(fmt::format("blocks.{}.attn2.norm_added_q.weight", i),
                             at::ones({config.width()}));
    }
    const test::Folder written;
    write_safetensors(written / "t.safetensors", tensors);
    const auto error = [&] {
      return test::message_of([&] {
        check_wan_tensors(Weights::open(written / "t.safetensors", at::kCPU, at::kFloat), config);
      });
    };
    CHECK(error() == "no error");
    config.cross_attn_norm = false;
    CHECK(
        error().find("unexpected tensors that the model does not have: \"blocks.0.norm2.bias\"") !=
        std::string::npos);
    config.cross_attn_norm = true;
    --config.num_layers;
    CHECK(error().find("unexpected tensors that the model does not have: ") != std::string::npos);
  }
}

TEST_CASE("wan: the layout of the released sizes, where the full recordings are" *
          doctest::test_suite("needs goldens")) {
  const fs::path shapes = full_goldens() / "real_shapes";
  if (!fs::exists(shapes)) return test::skip("the full recordings are not here");
  const auto check = [&](const char* file, const WanConfig& config) {
    CAPTURE(file);
    std::set<std::string> expected, found;
    std::ifstream lines(shapes / file);
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) expected.insert(line);
    for (const TensorShape& tensor : wan_layout(config)) {
      found.insert(fmt::format("{}\t{}", tensor.name, fmt::join(tensor.shape, "x")));
    }
    CHECK(expected.size() > 800);
    CHECK(found == expected);
  };
  WanConfig c;
  check("t2v_14B.tsv", c);
  c.in_channels = 36;
  check("wan22_i2v_a14b_each_expert.tsv", c);
  c.image_dim = 1280;
  check("i2v_14B.tsv", c);
  c.pos_embed_seq_len = 514;
  check("flf2v_14B.tsv", c);
  c = {};
  c.num_attention_heads = 12;
  c.ffn_dim = 8960;
  c.num_layers = 30;
  check("t2v_1.3B.tsv", c);
  c.num_attention_heads = 24;
  c.ffn_dim = 14336;
  c.in_channels = c.out_channels = 48;
  check("ti2v_5B.tsv", c);
}

TEST_CASE("wan: parts of the recorded cases") {
  for (const auto& [name, checkpoint] :
       {std::pair{"t2v_unipc_batched", "checkpoint"}, std::pair{"i2v_wan21", "checkpoint_i2v"}}) {
    CAPTURE(name);
    const Case recorded = Case::read(own_goldens() / "transformer" / name);
    const WanTransformer model = load(own_goldens() / checkpoint / "transformer");
    for (const Options& options : both_ways()) check_calls(recorded, model, options);
    Options math;
    math.attention = "math";
    check_calls(recorded, model, math);
  }
}

TEST_CASE("wan: the recorded cases, where the full recordings are" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  for (const auto& [name, checkpoint, module] :
       {std::tuple{"t2v_unipc_sequential", "checkpoint", "transformer"},
        std::tuple{"t2v_unipc_batched", "checkpoint", "transformer"},
        std::tuple{"t2v_single_frame_no_cfg", "checkpoint", "transformer"},
        std::tuple{"i2v_wan21", "checkpoint_i2v", "transformer"},
        std::tuple{"ti2v_text_only", "checkpoint_ti2v", "transformer"},
        std::tuple{"ti2v_image", "checkpoint_ti2v", "transformer"},
        std::tuple{"t2v_a14b_two_experts", "checkpoint_a14b", "transformer"},
        std::tuple{"t2v_a14b_two_experts", "checkpoint_a14b", "transformer_2"}}) {
    CAPTURE(name);
    CAPTURE(module);
    const Case recorded = Case::read(goldens / "cases" / name);
    const WanTransformer model = load(goldens / checkpoint / module);
    for (const Options& options : both_ways()) check_calls(recorded, model, options, module);
  }
}

TEST_CASE("wan: the recorded case context_mask_math: what is attended to behind a text") {
  const Case recorded = Case::read(own_goldens() / "transformer/context_mask_math");
  const double tolerance = recorded.json["tolerance"]["all"];
  const WanTransformer model = load(own_goldens() / "checkpoint/transformer");
  const std::int64_t length = recorded.expected.at("context_length").item<std::int64_t>();
  for (const auto& [name, rows] : {std::pair{"v.padded_to_512_no_mask__reference", kWanTextRows},
                                   std::pair{"v.padded_to_64_no_mask", std::int64_t{64}},
                                   std::pair{"v.padded_to_512_masked_to_length", length},
                                   std::pair{"v.context_cut_to_length", length}}) {
    CAPTURE(name);
    Inputs inputs;
    inputs.texts = {{recorded.inputs.at("prompt_embeds")[0].narrow(0, 0, length)}, rows};
    inputs.latents = recorded.inputs.at("x");
    inputs.timesteps = at::full({1}, recorded.json["timestep"].get<float>());
    for (const Options& options : both_ways()) {
      CHECK(worst(run(model, inputs, options).velocity, recorded.expected.at(name)) < tolerance);
    }
  }
}

TEST_CASE("wan: equal keys as one are the same as all rows of a text") {
  WanConfig config = small_config();
  for (const bool image : {false, true}) {
    if (image) config.image_dim = 12;
    const WanTransformer model = dummy(config);
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{1}, {21, 27}, {1, 512}, {511, 98}, {512, 512}, {300, 2, 40}}) {
      const Inputs inputs = noise_inputs(config, lengths);
      // Zero rows that are given are rows of their own: nothing is collapsed.
      Inputs plain = inputs;
      for (Tensor& rows : plain.texts.rows)
        rows = at::constant_pad_nd(rows, {0, 0, 0, kWanTextRows - rows.size(0)});
      const Tensor expected = run(model, plain).velocity;
      CHECK(expected.std().item<double>() > 0.1);
      for (const Options& options : both_ways()) {
        CHECK(relative_norm(run(model, inputs, options).velocity, expected) < 2e-6);
      }
    }
  }
}

TEST_CASE("wan: samples of one forward do not see each other") {
  WanConfig config = small_config();
  config.image_dim = 12;
  const WanTransformer model = dummy(config);
  const Inputs both = noise_inputs(config, {30, 5});
  const Tensor expected = run(model, both).velocity;
  CHECK(relative_norm(expected[0], expected[1]) > 0.1);
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    Inputs alone = both;
    alone.texts.rows = {both.texts.rows[static_cast<std::size_t>(sample)]};
    alone.latents = both.latents.narrow(0, sample, 1);
    alone.timesteps = both.timesteps.narrow(0, sample, 1);
    CHECK(relative_norm(run(model, alone).velocity[0], expected[sample]) < 2e-6);
  }
}

TEST_CASE("wan: a part of a context gives what a context of that part gives") {
  WanConfig config = small_config();
  config.image_dim = 12;
  const WanTransformer model = dummy(config);
  const Inputs inputs = noise_inputs(config, {30, 5});
  const Kernels kernels;
  const WanContext context = model.make_context(inputs.texts, kernels).slice(1, 1);
  const auto attention = make_attention("auto", at::kCPU);
  Inputs alone = inputs;
  alone.texts.rows = {inputs.texts.rows[1]};
  alone.latents = inputs.latents.narrow(0, 1, 1);
  alone.timesteps = inputs.timesteps.narrow(0, 1, 1);
  const Tensor expected = run(model, alone).velocity;
  for (const SharedKeys shared : {SharedKeys::weighted, SharedKeys::repeated}) {
    const WanPlan plan = model.plan(context, {3, 4, 6}, shared);
    const WanTime time = model.embed_time(plan, alone.timesteps, kernels);
    Tensor x = model.embed_latents(plan, alone.latents, kernels);
    x = model.run_blocks(plan, context, time, x, *attention, kernels);
    CHECK(relative_norm(model.head(plan, time, x, kernels), expected) < 2e-6);
  }
  CHECK_THROWS_AS(model.make_context(inputs.texts, kernels).slice(1, 2), c10::Error);
}

TEST_CASE("wan: a timestep for each row") {
  const WanConfig config = small_config();
  const WanTransformer model = dummy(config);
  const Inputs inputs = noise_inputs(config, {30, 5});
  const Tensor expected = run(model, inputs).velocity;
  Inputs by_row = inputs;
  by_row.timesteps = inputs.timesteps.unsqueeze(1).expand({2, 18}).contiguous();
  CHECK(run(model, by_row).velocity.equal(expected));
  // Rows of another time are modulated otherwise.
  by_row.timesteps[0].narrow(0, 0, 6).zero_();
  const Outputs changed = run(model, by_row);
  CHECK(relative_norm(changed.velocity[0], expected[0]) > 1e-3);
  CHECK(relative_norm(changed.velocity[1], expected[1]) < 1e-6);
  CHECK(changed.seen.at("temb").sizes() == at::IntArrayRef({2, 18, 64}));
}

TEST_CASE("wan: blocks on the host give the same bits") {
  WanConfig config = small_config();
  config.image_dim = 12;
  const Inputs inputs = noise_inputs(config, {30, 5});
  for (const Quantization kind : {Quantization::none, Quantization::fp8, Quantization::int8}) {
    Options options;
    options.quantization = kind;
    const Tensor expected = run(dummy(config, options), inputs, options).velocity;
    CHECK(expected.std().item<double>() > 0.1);
    for (const std::int64_t resident : {0, 2, 5}) {
      for (const std::int64_t slots : {1, 2, 3, 16}) {
        options.offload = BlockOffload{resident, slots};
        const WanTransformer model = dummy(config, options);
        CHECK(model.blocks.streams() == (resident < 5));
        CHECK(run(model, inputs, options).velocity.equal(expected));
        CHECK(run(model, inputs, options).velocity.equal(expected));
      }
    }
  }
}

TEST_CASE("wan: quantised matrices and bfloat16 stay near float32") {
  const WanConfig config = small_config();
  const Inputs inputs = noise_inputs(config, {30, 5});
  const Tensor expected = run(dummy(config), inputs).velocity;
  const auto error = [&](at::ScalarType dtype, Quantization kind) {
    Options options;
    options.dtype = dtype;
    options.quantization = kind;
    const Tensor found = run(dummy(config, options), inputs, options).velocity;
    CHECK((found.scalar_type() == dtype));
    return relative_norm(found, expected);
  };
  // Dummy weights depend on the dtype, so bfloat16 is held to its own float32 elsewhere.
  CHECK(error(at::kFloat, Quantization::int8) < 0.02);
  CHECK(error(at::kFloat, Quantization::fp8) < 0.1);

  Options narrow;
  narrow.dtype = at::kBFloat16;
  const fs::path folder = own_goldens() / "checkpoint/transformer";
  const WanTransformer wide_model = load(folder), narrow_model = load(folder, narrow);
  CHECK((narrow_model.time_embedder.linear_1.scalar_type() == at::kFloat));
  CHECK((narrow_model.block_tables.scalar_type() == at::kFloat));
  CHECK((narrow_model.blocks[0].norm2_weight.scalar_type() == at::kFloat));
  const Inputs noise = noise_inputs(wide_model.config, {30, 5});
  const double found =
      relative_norm(run(narrow_model, noise, narrow).velocity, run(wide_model, noise).velocity);
  MESSAGE("bfloat16 against float32: ", found);
  CHECK(found > 0);
  CHECK(found < 0.03);
}

TEST_CASE("wan: an unused norm of released files is read over") {
  const fs::path folder = own_goldens() / "checkpoint_i2v/transformer";
  NamedTensors named = read_trace(folder / "diffusion_pytorch_model.safetensors");
  named["blocks.0.attn2.norm_added_q.weight"] = at::ones({24});
  const test::Folder copy;
  fs::copy_file(folder / "config.json", copy / "config.json");
  write_safetensors(copy / "model.safetensors",
                    std::vector<std::pair<std::string, Tensor>>(named.begin(), named.end()));
  CHECK(test::message_of([&] { load(copy.path()); }) == "no error");
  named["blocks.0.attn2.norm_added_v.weight"] = at::ones({24});
  write_safetensors(copy / "model.safetensors",
                    std::vector<std::pair<std::string, Tensor>>(named.begin(), named.end()));
  CHECK(test::message_of([&] { load(copy.path()); }).find("norm_added_v") != std::string::npos);
}

TEST_CASE("wan: what does not fit is refused") {
  WanConfig config = small_config();
  config.rope_max_seq_len = 3;
  const WanTransformer model = dummy(config);
  const Kernels kernels;
  Inputs inputs = noise_inputs(config, {3});
  const WanContext context = model.make_context(inputs.texts, kernels);
  const auto plan = [&](WanLatentSize size) {
    return model.plan(context, size, SharedKeys::weighted);
  };
  CHECK(plan({3, 6, 6}).size.rows() == 27);
  CHECK(test::message_of([&] {
          plan({4, 6, 6});
        }) == "wan: 4 positions along the frames, expected at most 3");
  CHECK_THROWS_AS(plan({3, 5, 6}), c10::Error);
  CHECK_THROWS_AS(model.embed_time(plan({3, 4, 6}), at::ones({2}), kernels), c10::Error);
  CHECK_THROWS_AS(model.embed_latents(plan({3, 4, 4}), inputs.latents, kernels), c10::Error);
  inputs.texts.image = at::ones({7, 12});
  CHECK_THROWS_AS(model.make_context(inputs.texts, kernels), c10::Error);
  CHECK_THROWS_AS(model.make_context({{at::ones({513, 48})}}, kernels), c10::Error);
  CHECK_THROWS_AS(model.make_context({{at::ones({5, 40})}}, kernels), c10::Error);
  CHECK_THROWS_AS(model.make_context({}, kernels), c10::Error);
}

}  // namespace diptych
