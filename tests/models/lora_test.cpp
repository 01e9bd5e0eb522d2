// LoRA files: their keys, and what they change, against weights that diffusers merged.
#include "lib/models/lora/lora.h"

#include <cmath>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/lora/lora_key.h"
#include "lib/models/wan/lora.h"
#include "lib/tensor/safetensors.h"
#include "lib/tensor/weights.h"
#include "tests/support/folder.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Named = std::vector<std::pair<std::string, Tensor>>;

const fs::path kOwn = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/wan";
const fs::path kTransformer = kOwn / "checkpoint/transformer";

std::vector<LoraModule> modules() {
  return wan_lora_modules(WanConfig::load(kTransformer / "config.json"));
}

Lora read(const fs::path& file, const LoraOptions& options) {
  return read_lora(SafetensorsFile::open(file), modules(), options);
}

// The tensors of a recording that begin with the prefix, against the checkpoint's with the changes.
// Returns how many there are.
std::size_t check_merged(const fs::path& expected, const std::string& prefix,
                         const WeightChanges& changes, double tolerance) {
  WeightReading reading;
  reading.changes = changes;
  const Weights weights = Weights::open(kTransformer, at::kCPU, at::kFloat, reading);
  const SafetensorsFile file = SafetensorsFile::open(expected);
  std::size_t checked = 0;
  for (const auto& [name, entry] : file.entries()) {
    if (!name.starts_with(prefix)) continue;
    const std::string tensor = name.substr(prefix.size());
    CAPTURE(tensor);
    const Tensor merged = weights.get(tensor, entry.shape);
    CHECK((merged - file.view(name)).abs().max().item<double>() <= tolerance);
    ++checked;
  }
  return checked;
}

// The files of a case, at their strengths, in one.
WeightChanges changes_of(const fs::path& folder, bool all = false) {
  WeightChanges changes;
  const nlohmann::json description = test::case_json(folder);
  for (const auto& each : description.at("lora")) {
    const Lora lora = read(folder / each.at("file").get<std::string>(),
                           {.scale = each.at("strength").get<double>(), .all_differences = all});
    for (const auto& [name, added] : lora.changes)
      changes[name].insert(changes[name].end(), added.begin(), added.end());
  }
  return changes;
}

std::string refusal(const Named& tensors, const std::map<std::string, std::string>& header = {}) {
  const test::Folder folder;
  write_safetensors(folder / "l.safetensors", tensors, header);
  try {
    read(folder / "l.safetensors", {});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Named pair_of(const std::string& module, std::int64_t rank = 4, std::int64_t in = 24,
              std::int64_t out = 24) {
  return {{module + ".lora_down.weight", at::ones({rank, in})},
          {module + ".lora_up.weight", at::ones({out, rank})}};
}

// A module of the file -> the only tensor that is changed.
std::string target_of(const Named& tensors) {
  const test::Folder folder;
  write_safetensors(folder / "l.safetensors", tensors);
  const Lora lora = read(folder / "l.safetensors", {});
  CHECK(lora.changes.size() == 1);
  return lora.changes.begin()->first;
}

double factor_of(const Named& tensors, const std::map<std::string, std::string>& header = {}) {
  const test::Folder folder;
  write_safetensors(folder / "l.safetensors", tensors, header);
  return read(folder / "l.safetensors", {.scale = 2}).changes.begin()->second.front().factor;
}

}  // namespace

TEST_CASE("LoRA: keys of every naming") {
  struct Case {
    const char *key, *module;
    LoraTensor kind;
  };
  const Case cases[] = {
      {"transformer.blocks.0.attn1.to_q.lora_A.weight", "blocks_0_attn1_to_q", LoraTensor::down},
      {"transformer.blocks.0.attn1.to_q.lora.up.weight", "blocks_0_attn1_to_q", LoraTensor::up},
      {"diffusion_model.blocks.0.self_attn.q.lora_B.weight", "blocks_0_self_attn_q",
       LoraTensor::up},
      {"lora_unet_blocks_0_cross_attn_k_img.alpha", "blocks_0_cross_attn_k_img", LoraTensor::alpha},
      {"lora_unet__blocks_0_cross_attn_k.lora_down.weight", "blocks_0_cross_attn_k",
       LoraTensor::down},
      {"lora_unet_blocks_32.self_attn.k.lora_down.weight", "blocks_32_self_attn_k",
       LoraTensor::down},
      {"blocks.0.self_attn.q.lora_A.default.weight", "blocks_0_self_attn_q", LoraTensor::down},
      {"pipe.dit.blocks.0.ffn.0.lora_B.default.weight", "blocks_0_ffn_0", LoraTensor::up},
      {"base_model.model.blocks.0.ffn.2.lora_A.weight", "blocks_0_ffn_2", LoraTensor::down},
      {"lycoris_blocks_0_self_attn_to_q.lora_up.weight", "blocks_0_self_attn_to_q", LoraTensor::up},
      {"transformer.blocks.0.attn1.to_q.lora_linear_layer.down.weight", "blocks_0_attn1_to_q",
       LoraTensor::down},
      {"transformer.blocks.0.attn1.to_q_lora.down.weight", "blocks_0_attn1_to_q", LoraTensor::down},
      {"diffusion_model.head.head.diff", "head_head", LoraTensor::difference},
      {"diffusion_model.blocks.0.diff_m", "blocks_0", LoraTensor::table_change},
      {"diffusion_model.blocks.0.norm3.diff_b", "blocks_0_norm3", LoraTensor::bias_change},
  };
  for (const Case& each : cases) {
    CAPTURE(each.key);
    const LoraKey key = parse_lora_key(each.key);
    CHECK(key.kind == each.kind);
    CHECK(lora_module(key.module) == each.module);
  }
  CHECK(parse_lora_key("diffusion_model.blocks.0.self_attn.q.dora_scale").form == "DoRA");
  CHECK(parse_lora_key("lycoris_blocks_0_attn1_to_q.lokr_w1").form == "LyCORIS LoKr");
  CHECK(parse_lora_key("lycoris_blocks_0_attn1_to_q.hada_w1_a").form == "LyCORIS LoHa");
  CHECK(parse_lora_key("step").kind == LoraTensor::other);
  CHECK(is_of_text_encoder("lora_te1_encoder_layers_0.alpha"));
  CHECK_FALSE(is_of_text_encoder("text_embedding.0.diff_b"));
}

TEST_CASE("LoRA: merged weights are those of diffusers") {
  const fs::path weights = kOwn / "weights";
  const char* const fused = "fused.transformer.";
  CHECK(check_merged(weights / "t2v_lora_diffusers/expected.safetensors", fused,
                     changes_of(weights / "t2v_lora_diffusers"), 3.11e-6) == 3);
  CHECK(check_merged(weights / "t2v_lora_original/expected.safetensors", fused,
                     changes_of(weights / "t2v_lora_original"), 3.11e-6) == 9);
  CHECK(check_merged(weights / "t2v_lora_two/expected.safetensors", fused,
                     changes_of(weights / "t2v_lora_two"), 3.11e-6) == 3);
  const Lora header =
      read(weights / "t2v_lora_diffusers/lora_with_metadata.safetensors", {.scale = 0.7});
  CHECK(check_merged(weights / "t2v_lora_diffusers/expected.safetensors",
                     "metadata.fused.transformer.", header.changes, 3.11e-6) == 2);
  CHECK(check_merged(weights / "t2v_lora_original/expected_all_diffs.safetensors", fused,
                     changes_of(weights / "t2v_lora_original", true), 3.11e-6) == 7);
}

TEST_CASE("LoRA: exactly the tensors change that change in diffusers") {
  const fs::path weights = kOwn / "weights";
  for (const char* name : {"t2v_lora_diffusers", "t2v_lora_original", "t2v_lora_two"}) {
    CAPTURE(name);
    const auto recorded = test::case_json(weights / name);
    const WeightChanges changes = changes_of(weights / name);
    CHECK(changes.size() == recorded.at("changed_tensors").at("transformer"));
    for (const std::string tensor : recorded.at("unchanged_tensors").at("transformer"))
      CHECK_FALSE(changes.contains(tensor));
  }
  CHECK(changes_of(weights / "t2v_lora_original", true).size() == 69);
  for (const char* file : {"lora_HIGH.safetensors", "lora_LOW.safetensors"})
    CHECK(read(weights / "t2v_a14b_lora_pair" / file, {}).changes.size() == 20);
}

TEST_CASE("LoRA: every prefix and naming finds its module") {
  const std::string query = "blocks.1.attn1.to_q.weight";
  for (const char* prefix : {"transformer.", "", "pipe.dit.", "base_model.model.", "unet."})
    CHECK(target_of(pair_of(std::string(prefix) + "blocks.1.attn1.to_q")) == query);
  for (const char* module :
       {"diffusion_model.blocks.1.self_attn.q", "model.diffusion_model.blocks.1.self_attn.q",
        "lora_unet_blocks_1_self_attn_q", "lora_unet__blocks_1_self_attn_q",
        "lora_unet_blocks_1.self_attn.q", "lycoris_blocks_1_attn1_to_q"})
    CHECK(target_of(pair_of(module)) == query);
  CHECK(target_of(pair_of("diffusion_model.head.head", 2, 24, 64)) == "proj_out.weight");
  CHECK(target_of(pair_of("lora_unet_time_projection_1", 2, 24, 144)) ==
        "condition_embedder.time_proj.weight");
  // A of a convolution, flat and in five dimensions.
  CHECK(target_of(pair_of("diffusion_model.patch_embedding", 4, 64)) == "patch_embedding.weight");
  CHECK(target_of({{"diffusion_model.patch_embedding.lora_A.weight", at::ones({4, 16, 1, 2, 2})},
                   {"diffusion_model.patch_embedding.lora_B.weight",
                    at::ones({24, 4, 1, 1, 1})}}) == "patch_embedding.weight");
}

TEST_CASE("LoRA: alpha is a number of any dtype, from a tensor or the header") {
  const std::string module = "diffusion_model.blocks.0.self_attn.q";
  Named tensors = pair_of(module, 6);
  CHECK(factor_of(tensors) == 2);
  tensors.push_back({module + ".alpha", {}});
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, std::vector<std::int64_t>{1}}) {
      tensors.back().second = at::full(shape, 5, at::kFloat).to(dtype);
      CHECK(factor_of(tensors) == 2 * (5. / 6));
    }
  }
  const auto header = [](const char* json) {
    return std::map<std::string, std::string>{{"lora_adapter_metadata", json}};
  };
  const Named peft = {{"transformer.blocks.0.attn1.to_q.lora_A.weight", at::ones({4, 24})},
                      {"transformer.blocks.0.attn1.to_q.lora_B.weight", at::ones({24, 4})}};
  CHECK(factor_of(peft, header(R"({"transformer.r": 4, "transformer.lora_alpha": 16})")) == 8);
  CHECK(factor_of(peft, header(R"({"transformer.r": 4})")) == 4);  // alpha is 8
  CHECK(factor_of(peft, header(R"({"text_encoder.r": 4})")) == 2);
  CHECK(factor_of(peft, header(R"({"transformer.lora_alpha": 16,
                                   "transformer.alpha_pattern": {"attn1.to_q": 2}})")) == 1);
  CHECK(factor_of(peft, header(R"({"transformer.lora_alpha": 16,
                                   "transformer.use_rslora": true})")) == 16);
  // Patterns are regular expressions of whole names or of their ends, the first that fits counts.
  const auto by_patterns = [&](const std::string& patterns) {
    return factor_of(peft,
                     header((R"({"transformer.lora_alpha": 16, "transformer.alpha_pattern": {)" +
                             patterns + "}}")
                                .c_str()));
  };
  CHECK(by_patterns(R"("blocks.[01].attn1.*": 2)") == 1);
  CHECK(by_patterns(R"("^blocks\\.0\\..*to_q": 2)") == 1);
  CHECK(by_patterns(R"("to_k|to_q": 2, "attn1.to_q": 4)") == 1);
  CHECK(by_patterns(R"("to_q": 2, "attn1.to_q": 4)") == 1);
  CHECK(by_patterns(R"("^attn1.to_q": 2, "o_q": 2, "blocks": 2, "attn1.to": 2)") == 8);
  CHECK(by_patterns(R"("(.+)+x": 2)") == 8);  // would never end where every way is tried
  CHECK(factor_of(tensors, header(R"({"transformer.lora_alpha": 99})")) == 2 * (5. / 6));
  CHECK(refusal(peft, header(R"({"transformer.alpha_pattern": {"to_(q": 2}})"))
            .find("alpha_pattern: \"to_(q\": expected a regular expression") != std::string::npos);
  CHECK(refusal(peft, header(R"({"transformer.alpha_pattern": {"to_q\\Z": 2}})"))
            .find("expected a regular expression: is too long, or has an escape") !=
        std::string::npos);  // which Python alone has
  CHECK(refusal(peft, header("{nonsense")).find("no JSON object") != std::string::npos);
  CHECK(refusal(peft, header(R"({"transformer.lora_alpha": "x"})")).find("expected a number") !=
        std::string::npos);
  CHECK(refusal(peft, header(R"({"transformer.use_dora": true})")).find("DoRA") !=
        std::string::npos);
}

TEST_CASE("LoRA: what does not fit is an error of one line with file and key") {
  const std::string q = "diffusion_model.blocks.0.self_attn.q";
  const auto check = [](const Named& tensors, const std::string& part) {
    const std::string message = refusal(tensors);
    CAPTURE(message);
    CHECK(message.find("l.safetensors: ") != std::string::npos);
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  };
  const auto with = [&](std::string key, Tensor value) {
    Named tensors = pair_of(q);
    tensors.push_back({std::move(key), std::move(value)});
    return tensors;
  };
  check({}, "changes no tensor");
  check(pair_of("diffusion_model.blocks.7.self_attn.q"),
        "key \"diffusion_model.blocks.7.self_attn.q.lora_down.weight\" fits nothing of the model");
  check(pair_of("diffusion_model.blocks.7.self_attn.q"), "2 of the 2 keys");
  check(with("step", at::ones({1})), "\"step\" fits nothing");
  check(with("diffusion_model.blocks.0.norm3.alpha", at::ones({1})), "fits nothing");
  check(with(q + ".dora_scale", at::ones({24})), "DoRA");
  check(with("lora_unet_blocks_0_self_attn_k.hada_w1_a", at::ones({24})), "LyCORIS LoHa");
  check(with(q + ".alpha", at::ones({2})), "expected one number");
  check(with(q + ".alpha", at::full({}, NAN)), "expected a number");
  check(with(q + ".alpha", at::full({}, 1e300, at::kDouble)),
        q + ".alpha\" gets the factor 2.5e+299, expected one that float32 holds");
  check(with("diffusion_model.blocks.0.self_attn.k.alpha", at::ones({1})),
        "self_attn.k.alpha\" has neither A nor B");
  check(with("diffusion_model.blocks.0.self_attn.k.diff_b", at::full({24}, NAN)),
        "self_attn.k.diff_b\" holds NaN");
  for (const double value : {double{NAN}, -double{INFINITY}, 1e300})
    check({{q + ".lora_down.weight", at::full({4, 24}, value, at::kDouble)}, pair_of(q)[1]},
          q + ".lora_down.weight\" holds NaN or infinity");
  check({{q + ".lora_down.weight", at::full({4, 24}, 1e30)},
         {q + ".lora_up.weight", at::full({24, 4}, 1e30)}},
        q + ".lora_down.weight\" times its B and the factor 1 passes float32");
  check(with("blocks.0.attn1.to_q.lora_A.weight", at::ones({4, 24})), "by another name");
  check(with("diffusion_model.head.head.diff", at::ones({24, 64})),
        "has shape [24, 64], expected [64, 24]");
  check(with("diffusion_model.head.head.diff_b", at::ones({64}, at::kInt)), "has dtype I32");
  check({pair_of(q)[0]}, "has no B");
  check({pair_of(q)[1]}, "has no A");
  check(pair_of(q, 4, 32), "has shape [4, 32], expected [rank, 24]");
  check(pair_of(q, 4, 24, 32), "has shape [32, 4], expected [24, 4]");
  check({pair_of(q, 4)[0], pair_of(q, 8)[1]}, "has shape [24, 8], expected [24, 4]");
  check(pair_of(q, 0), "has shape [0, 24]");
  check({{q + ".lora_down.weight", at::ones({24})}, pair_of(q)[1]}, "has shape [24]");
}

TEST_CASE("LoRA: keys of other models of the kind and of text encoders are counted, not errors") {
  Named tensors = pair_of("lora_unet_blocks_0_cross_attn_k");
  for (const auto& [key, value] : pair_of("lora_unet_blocks_0_cross_attn_k_img"))
    tensors.emplace_back(key, value);
  tensors.emplace_back("lora_te_encoder_0.lora_down.weight", at::ones({4, 24}));
  const test::Folder folder;
  write_safetensors(folder / "l.safetensors", tensors);
  const Lora lora = read(folder / "l.safetensors", {});
  CHECK(lora.absent.size() == 2);
  CHECK(lora.of_texts.size() == 1);
  REQUIRE(lora.changes.size() == 1);
  CHECK(lora.changes.begin()->first == "blocks.0.attn2.to_k.weight");
}

TEST_CASE("LoRA: the bias of the time projection counts beside its factors, as in diffusers") {
  const std::string time = "diffusion_model.time_projection.1";
  const test::Folder folder;
  Named tensors = pair_of("diffusion_model.blocks.0.self_attn.q");
  tensors.push_back({time + ".diff_b", at::ones({144})});
  write_safetensors(folder / "l.safetensors", tensors);
  CHECK(read(folder / "l.safetensors", {}).unused.size() == 1);
  CHECK(read(folder / "l.safetensors", {.all_differences = true}).unused.empty());
  for (const auto& [key, value] : pair_of(time, 4, 24, 144)) tensors.emplace_back(key, value);
  write_safetensors(folder / "l.safetensors", tensors);
  CHECK(read(folder / "l.safetensors", {}).unused.empty());
}

}  // namespace diptych
