// What BAGEL says of the names of its recorded tensors.
#include <algorithm>
#include <random>
#include <set>

#include <doctest/doctest.h>

#include "lib/pipelines/bagel/trace_names.h"
#include "lib/pipelines/registry.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

using nlohmann::json;

bool before(const std::string& a, const std::string& b) {
  return computed_before(a, b, bagel_trace_names());
}

// The kinds of number that the recorded tensors have.
TensorKind kind_of(std::string_view name) {
  if (name.ends_with("uint8")) return TensorKind::bytes;
  const bool whole = name.ends_with("ids") || name.ends_with("len");
  return whole ? TensorKind::whole : TensorKind::floating;
}

// In order of computation.
const std::vector<std::string> kRun = {
    "prefill.00.cond.vae.packed_seqlens",
    "prefill.00.cond.vae.vae.image",
    "prefill.00.cond.vae.vae.moments",
    "prefill.00.cond.vae.vae.noise",
    "prefill.00.cond.vae.vae.latent",
    "prefill.00.cond.vae.time_embed",
    "prefill.00.cond.vae.vae2llm",
    "prefill.00.cond.vae.embeds",
    "prefill.00.cond.vae.layer00.hidden",
    "prefill.00.cond.vae.layer02.hidden",
    "prefill.00.cond.vae.layer10.hidden",
    "prefill.00.cond.vae.final_norm",
    "prefill.01.cond.vit.position_ids",
    "prefill.01.cond.vit.packed_vit_tokens",
    "prefill.01.cond.vit.vit.embed",
    "prefill.01.cond.vit.vit.layer00.hidden",
    "prefill.01.cond.vit.vit.post_layernorm",
    "prefill.01.cond.vit.vit.connector",
    "prefill.01.cond.vit.embeds",
    "prefill.01.cond.vit.layer00.hidden",
    "prefill.02.img_uncond.text.packed_text_ids",
    "prefill.02.img_uncond.text.embeds",
    "prefill.10.cond.text.embeds",
    "decode.kv.layer00.key",
    "decode.token_ids",
    "decode.logits",
    "decode.margin",
    "kv.cond.len",
    "kv.cond.layer00.key",
    "kv.cond.layer00.value",
    "kv.cond.layer01.key",
    "kv.text_uncond.len",
    "kv.img_uncond.layer00.key",
    "gen.packed_vae_position_ids",
    "gen.init_noise",
    "step000.t",
    "step000.time_embed",
    "step000.vae2llm",
    "step000.cond.position_ids",
    "step000.cond.embeds",
    "step000.cond.layer00.hidden",
    "step000.cond.final_norm",
    "step000.text_uncond.layer00.hidden",
    "step000.img_uncond.final_norm",
    "step000.v_cond",
    "step000.v_text_uncond",
    "step000.v_img_uncond",
    "step000.v_guided",
    "step000.latent",
    "step001.t",
    "step001.latent",
    "step010.v_cond",
    "result.0.latent",
    "vae.decode_input",
    "vae.decoded",
    "image.uint8",
    "something.else.02",
    "something.else.10",
};

const std::vector<std::string> kVae = {
    "0.image",
    "0.encoder.down.0.downsample",
    "0.encoder.down.2.downsample",
    "0.encoder.down.3.block.0",
    "0.encoder.mid.block_1",
    "0.encoder.mid.attn_1",
    "0.encoder.mid.block_2",
    "0.moments",
    "0.noise",
    "0.latent_mean",
    "0.latent_sampled",
    "0.decoder.conv_in",
    "0.decoder.mid.attn_1",
    "0.decoder.mid.block_2",
    "0.decoder.up.3.upsample",
    "0.decoder.up.2.upsample",
    "0.decoded",
    "1.image",
    "z_random.decoded",
};

}  // namespace

TEST_CASE("BAGEL's names sort in order of computation") {
  std::mt19937 random(7);
  for (const auto& expected : {kRun, kVae}) {
    auto names = expected;
    std::shuffle(names.begin(), names.end(), random);
    std::sort(names.begin(), names.end(), before);
    CHECK(names == expected);
    CHECK(trace_names_of(names).stages.data() == bagel_trace_names().stages.data());
  }
  const std::vector<std::string> others = {"x.hidden", "y"};
  CHECK(trace_names_of(others).stages.empty());
}

TEST_CASE("the groups of case 01") {
  const auto tolerances =
      Tolerances::from_case(test::own_case("01_t2i_square"), bagel_trace_names());
  const std::pair<const char*, double> table[] = {
      {"prefill.00.cond.text.packed_text_ids", 0},
      {"prefill.00.cond.text.embeds", 2e-5},
      {"prefill.00.cond.text.layer02.hidden", 2e-5},
      {"prefill.00.cond.text.final_norm", 2e-5},
      {"kv.cond.len", 0},
      {"kv.img_uncond.layer01.value", 2e-5},
      {"gen.init_noise", 2e-5},
      {"gen.text_uncond.position_ids", 0},
      {"step000.t", 3e-5},
      {"step000.time_embed", 3e-5},
      {"step000.vae2llm", 3e-5},
      {"step000.cond.embeds", 3e-5},
      {"step006.cond.layer00.hidden", 3e-5},
      {"step000.text_uncond.final_norm", 3e-5},
      {"step000.v_cond", 2e-5},
      {"step003.v_text_uncond", 2e-5},
      {"step003.v_guided", 2e-5},
      {"step006.latent", 2e-5},
      {"vae.decode_input", 2e-5},
      {"vae.decoded", 2e-5},
      {"image.uint8", 1},
      {"step000.v_img_uncond", 3e-5},  // no group of its own: suggested_overall
      {"anything.else", 3e-5},
  };
  for (const auto& [name, expected] : table) {
    CAPTURE(name);
    CHECK(tolerances.for_tensor(name, kind_of(name)) == expected);
  }
  CHECK_FALSE(tolerances.image_mean_abs().has_value());
}

TEST_CASE("the groups of the bf16 case 12") {
  const auto tolerances =
      Tolerances::from_case(test::own_case("12_t2i_square_bf16"), bagel_trace_names());
  const std::pair<const char*, double> table[] = {
      {"gen.init_noise", 0},
      {"kv.cond.layer00.key", 0.066},
      {"prefill.00.cond.text.embeds", 0.098},
      {"step000.cond.layer00.hidden", 0.13},
      {"step000.latent", 0.044},
      {"step000.v_guided", 0.1},
      {"vae.decode_input", 0.044},
      {"vae.decoded", 0.031},
      {"anything.else", 0.13},  // no suggested_overall: the largest
      {"image.uint8", 4},       // 0.031 of the decoder's -1 to 1, in levels; and by its mean
      {"kv.cond.len", 0},
  };
  for (const auto& [name, expected] : table) {
    CAPTURE(name);
    CHECK(tolerances.for_tensor(name, kind_of(name)) == expected);
  }
  CHECK(tolerances.image_mean_abs() == 0.67);
}

TEST_CASE("groups of cases with pictures in, text out and batches") {
  const json block = {{"suggested",
                       {{"prefill.vae.*", 6e-5},
                        {"prefill.vit.*", 5e-5},
                        {"prefill.hidden", 2e-5},
                        {"decode.logits", 4e-5},
                        {"kv", 1e-5},
                        {"result", 7e-5},
                        {"vae.internal", 3e-4},
                        {"vae.decoded", 8e-5}}},
                      {"suggested_overall", 1.0}};
  const auto tolerances = Tolerances::from_case({{"tolerance", block}}, bagel_trace_names());
  const std::pair<const char*, double> table[] = {
      {"prefill.00.cond.vae.vae.moments", 6e-5},
      {"prefill.00.cond.vae.vae2llm", 2e-5},
      {"prefill.00.cond.vae.time_embed", 2e-5},
      {"prefill.00.cond.vit.packed_vit_tokens", 5e-5},
      {"prefill.01.cond.vit.vit.layer00.hidden", 5e-5},
      {"prefill.01.cond.vit.layer00.hidden", 2e-5},
      {"decode.logits", 4e-5},
      {"decode.margin", 4e-5},
      {"decode.kv.layer00.key", 1e-5},
      {"decode.token_ids", 0},
      {"result.1.latent", 7e-5},
      {"0.encoder.mid.attn_1", 3e-4},
      {"0.moments", 3e-4},
      {"0.decoded_mean", 8e-5},
      {"z_random.decoded", 8e-5},
      {"vae.decoded.1", 8e-5},
  };
  for (const auto& [name, expected] : table) {
    CAPTURE(name);
    CHECK(tolerances.for_tensor(name, kind_of(name)) == expected);
  }
}

TEST_CASE("every group that a case suggests is one that its tensors use") {
  int cases = 0;
  for (const auto& folder : test::bagel_cases()) {
    if (!std::filesystem::exists(folder / "expected.safetensors")) continue;
    json description = test::case_json(folder);
    if (!description.contains("tolerance") || !description["tolerance"].contains("suggested"))
      continue;
    CAPTURE(folder.string());
    // Each group gets a number of its own, by which it is known again.
    std::map<double, std::string> group_of;
    json& groups = description["tolerance"]["suggested"];
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      const double own = 1.0 + static_cast<double>(group_of.size());
      group_of[own] = group.key();
      *group = own;
    }
    description["tolerance"]["suggested_overall"] = 0.5;
    const auto tolerances = Tolerances::from_case(description, bagel_trace_names());
    std::set<std::string> used;
    for (const auto& [name, tensor] : read_trace(folder / "expected.safetensors")) {
      CAPTURE(name);
      if (!tensor.is_floating_point()) continue;
      const double limit = tolerances.for_tensor(name, TensorKind::floating);
      REQUIRE(group_of.contains(limit));  // no name of a case needs the fallback
      used.insert(group_of.at(limit));
    }
    CHECK(used.size() == group_of.size());
    ++cases;
  }
  CHECK(cases >= 7);
}

TEST_CASE("recorded bf16 and float32 runs differ as their case says") {
  const auto cases = std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/cases";
  const auto f32 = read_trace(cases / "01_t2i_square/expected.safetensors");
  const auto bf16 = read_trace(cases / "12_t2i_square_bf16/expected.safetensors");
  const TraceNames& names = bagel_trace_names();
  const auto compare = [&](const char* tolerances) {
    return compare_traces(bf16, f32, Tolerances::from_case(test::own_case(tolerances), names),
                          names);
  };
  const auto loose = compare("12_t2i_square_bf16");
  CHECK(loose.pass());
  const auto strict = compare("01_t2i_square");
  CHECK_FALSE(strict.pass());
  CHECK(strict.first_divergence()->name.starts_with("prefill.00.cond.text."));
  const auto kv = std::find_if(strict.tensors.begin(), strict.tensors.end(),
                               [](const auto& t) { return t.name == "step006.latent"; });
  CHECK(kv->difference.max_abs == doctest::Approx(0.02934).epsilon(0.01));  // measured_bf16_vs_f32
}

TEST_CASE("a bfloat16 run of a float32 recording is judged by twice the official code's noise") {
  RecordedCase recorded{"case", {{"task", "t2i"}}};
  const auto limit = [&](const char* name) {
    auto tolerances = Tolerances::uniform(0);
    for (const NormTolerance& tolerance : bagel_bf16_tolerances(recorded))
      tolerances.set_relative_norm(tolerance);
    return tolerances.relative_norm_for(name).value_or(-1);
  };
  CHECK(limit("step000.cond.layer00.hidden") == 2 * 0.01014);
  CHECK(limit("step000.v_cond") == 2 * 0.01134);
  CHECK(limit("step000.v_guided") == 2 * 0.01744);
  CHECK(limit("vae.decoded") == 3 * 0.00661);
  CHECK(limit("vae.decode_input") == 3 * 0.00677);
  CHECK(limit("gen.init_noise") == 0);
  CHECK(limit("step000.t") == 0);
  recorded.description["params"]["cfg_img_scale"] = 1.5;
  CHECK(limit("step000.v_guided") == 1.5 * (2 * 0.01744));
  CHECK(limit("vae.decoded") == 1.5 * (3 * 0.00661));
  CHECK(limit("step000.v_cond") == 2 * 0.01134);
  recorded.description["task"] = "vae";  // stays float32
  CHECK(limit("0.decoded") == -1);
}

}  // namespace diptych
