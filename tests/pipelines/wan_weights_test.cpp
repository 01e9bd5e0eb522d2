// Files of weights beside a Wan folder: LoRA files for one transformer and for two experts, single
// files, and what is said of them.
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/dit/session.h"
#include "lib/pipelines/registry.h"
#include "lib/pipelines/wan/checkpoint.h"
#include "lib/pipelines/wan/describe.h"
#include "lib/pipelines/wan/loras.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

const fs::path kOwn = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/wan";
const fs::path kCases = kOwn / "weights";

// The full recordings; empty where they are not.
fs::path full_goldens() {
  const fs::path folder = test::goldens_of("wan").back();
  return fs::exists(folder / "checkpoint/model_index.json") ? folder : fs::path();
}

WanConfig sizes() {
  return WanConfig::load(kOwn / "checkpoint/transformer/config.json");
}

WanLoras read(std::vector<AddedWeights> files, bool experts) {
  WanSettings settings;
  settings.loras = std::move(files);
  Log log(LogLevel::quiet);
  return read_wan_loras(settings, sizes(), experts, log);
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

void check_contains(const std::string& text, std::string_view part) {
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
}

RunConfig config_of(const fs::path& model) {
  RunConfig config = default_options(find_family("wan").config()).run;
  config.device = {DeviceChoice::Kind::cpu};
  config.dtype = DtypeChoice::float32;
  config.model = model;
  return config;
}

std::string opening(const RunConfig& config) {
  Log log(LogLevel::quiet);
  return message_of([&] { DitSession(config, wan_opening(), log); });
}

}  // namespace

TEST_CASE("the name of a LoRA file says which expert it is for") {
  for (const char* name : {"lora_HIGH.safetensors", "high_noise_model.safetensors",
                           "Wan2.2-HighNoise-rank64.safetensors", "wan22_highnoise.safetensors",
                           "T2V-high.safetensors", "LightningHigh.safetensors"})
    CHECK(expert_of_name(name) == "high");
  for (const char* name : {"lora_LOW.safetensors", "low_noise_model.safetensors",
                           "Wan-LowNoise.safetensors", "x-lownoise.safetensors"})
    CHECK(expert_of_name(name) == "low");
  for (const char* name : {"flow.safetensors", "slow_motion.safetensors", "yellow.safetensors",
                           "highlights.safetensors", "FLOWER.safetensors",
                           "high_and_low.safetensors", "lora.safetensors"})
    CHECK(expert_of_name(name).empty());
}

TEST_CASE("LoRA files go to the experts that flags, names or keys say") {
  const fs::path high = kCases / "t2v_a14b_lora_pair/lora_HIGH.safetensors";
  const fs::path low = kCases / "t2v_a14b_lora_pair/lora_LOW.safetensors";
  const WanLoras by_name = read({{"", high, 1}, {"", low, 0.5}}, true);
  CHECK(by_name.parts == std::vector<std::string>{"high", "low"});
  const auto factor = [](const WanLoras& loras, std::size_t place) {
    const auto& changes = loras.changes[place].at("blocks.0.attn1.to_q.weight");
    REQUIRE(changes.size() == 1);
    return changes.front().factor;
  };
  CHECK(factor(by_name, 0) == 0.5);  // alpha 2, rank 4
  CHECK(factor(by_name, 1) == 0.5);
  const WanLoras by_flag = read({{"low", high, 1}, {"high", low, -3}}, true);
  CHECK(factor(by_flag, 0) == -3);
  CHECK(factor(by_flag, 1) == 0.5);
  const WanLoras both = read({{"both", high, 1}}, true);
  CHECK(factor(both, 0) == factor(both, 1));
  const WanLoras unnamed = read({{"", kCases / "t2v_lora_two/lora_peft.safetensors", 1}}, true);
  CHECK(unnamed.parts == std::vector<std::string>{"both"});
  CHECK(unnamed.changes[0].size() == unnamed.changes[1].size());
  const WanLoras one = read({{"", low, 1}}, false);  // the only transformer
  CHECK(one.parts == std::vector<std::string>{""});
  CHECK(one.changes[1].empty());
  check_contains(message_of([&] { read({{"high", high, 1}}, false); }), "has one transformer");

  const test::Folder folder;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const char* prefix : {"transformer.blocks.0", "transformer_2.blocks.1"}) {
    tensors.emplace_back(std::string(prefix) + ".attn1.to_q.lora_A.weight", at::ones({4, 24}));
    tensors.emplace_back(std::string(prefix) + ".attn1.to_q.lora_B.weight", at::ones({24, 4}));
  }
  write_safetensors(folder / "pair.safetensors", tensors);
  const WanLoras pair = read({{"", folder / "pair.safetensors", 1}}, true);
  CHECK(pair.changes[0].begin()->first == "blocks.0.attn1.to_q.weight");
  CHECK(pair.changes[1].begin()->first == "blocks.1.attn1.to_q.weight");
  check_contains(message_of([&] {
                   read({{"low", folder / "pair.safetensors", 1}}, true);
                 }),
                 "its keys say which expert");
  CHECK(read({{"both", folder / "pair.safetensors", 1}}, true).changes[0].size() == 1);
  check_contains(message_of([&] {
                   read({{"", folder / "pair.safetensors", 1}}, false);
                 }),
                 "pair.safetensors: key \"transformer_2.blocks.1.attn1.to_q.lora_A.weight\": the "
                 "model has one transformer");

  tensors.erase(tensors.begin(), tensors.begin() + 2);
  write_safetensors(folder / "second.safetensors", tensors);
  for (const char* part : {"", "low"}) {
    const WanLoras second = read({{part, folder / "second.safetensors", 1}}, true);
    CHECK(second.parts == std::vector<std::string>{"low"});
    CHECK(second.changes[0].empty());
    CHECK(second.changes[1].size() == 1);
  }
  check_contains(message_of([&] {
                   read({{"both", folder / "second.safetensors", 1}}, true);
                 }),
                 "its keys say which expert");
}

TEST_CASE("errors about files of weights name the flag and the file") {
  check_contains(message_of([&] {
                   read({{"", "gone.safetensors", 1}}, false);
                 }),
                 "--lora: gone.safetensors: ");
}

TEST_CASE("errors about parts of weights name the flag" * doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  RunConfig config = config_of(goldens / "checkpoint");
  config.own.get<WanSettings>().transformer = goldens / "checkpoint_ti2v/transformer";
  check_contains(opening(config), "out_channels 48, but the autoencoder has 16");
  config.own.get<WanSettings>().transformer = kCases / "t2v_lora_two/lora_peft.safetensors";
  check_contains(opening(config), "--transformer: ");
  check_contains(opening(config), "holds no transformer of Wan");
  config = config_of(goldens / "checkpoint");
  config.own.get<WanSettings>().vae = goldens / "checkpoint_ti2v/vae";
  check_contains(opening(config), "--vae: ");
  config = config_of(goldens / "checkpoint");
  config.own.get<WanSettings>().text_encoder = kCases / "t2v_lora_two/lora_peft.safetensors";
  check_contains(opening(config), "--text-encoder: ");
}

TEST_CASE("a second transformer makes two experts of a single one" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  RunConfig config = config_of(goldens / "checkpoint");
  config.own.get<WanSettings>().transformer_2 =
      goldens / "cases/single_file_original/model.safetensors";
  Log log(LogLevel::quiet);
  DitSession session(config, wan_opening(), log);
  const auto& checkpoint = dynamic_cast<WanCheckpoint&>(session.checkpoint());
  CHECK(checkpoint.has_experts());
  CHECK(checkpoint.index().boundary_ratio == 0.875);
}

TEST_CASE("where one expert has room, the other is read when it is asked for" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  const RunConfig config = config_of(goldens / "checkpoint_a14b");
  Log log(LogLevel::quiet);
  Progress progress(log, ProgressStyle::none);
  const Runtime runtime = make_runtime(config, log);
  WanCheckpoint one(config, runtime, log), both(config, runtime, log);
  MemoryPlan plan;
  plan.held = {{"transformer", 0}};
  one.load(plan, progress);
  plan.held = {{"experts", 0}};
  both.load(plan, progress);
  CHECK_FALSE(one.keeps_experts());
  CHECK(both.keeps_experts());
  const auto tables = [](WanCheckpoint& checkpoint, std::size_t place) {
    return checkpoint.expert(place).block_tables;
  };
  for (const std::size_t place : {0, 1, 0})
    CHECK(at::equal(tables(one, place), tables(both, place)));
  CHECK_FALSE(at::equal(tables(both, 0), tables(both, 1)));
}

TEST_CASE("all differences of a LoRA file, up to the latent" *
          doctest::test_suite("needs goldens")) {
  const fs::path goldens = full_goldens();
  if (goldens.empty()) return test::skip("the full recordings are not here");
  const fs::path folder = goldens / "cases/t2v_lora_original";
  const nlohmann::json description = test::case_json(folder);
  RunConfig config = config_of(goldens / "checkpoint");
  config.own.get<WanSettings>().lora_diffs = WanLoraDiffs::all;
  Log log(LogLevel::quiet);
  TraceSink trace({"final.latent", "step000.v_cond"});
  find_family("wan").replay(goldens / "checkpoint", config, log)({folder, description}, trace);
  const SafetensorsFile expected = SafetensorsFile::open(folder / "expected_all_diffs.safetensors");
  const auto& variant = description.at("all_diffs_variant");
  for (const auto& [name, value] : trace.tensors()) {
    CAPTURE(name);
    const double tolerance =
        variant.at(name == "final.latent" ? "final_latent_tolerance" : "v_cond_tolerance");
    CHECK((value - expected.view(name)).abs().max().item<double>() <= tolerance);
  }
  CHECK(trace.tensors().size() == 2);
}

TEST_CASE("what is said of a file of weights") {
  const auto lines = [](const fs::path& file) { return describe_wan_file(file); };
  const auto original = lines(kCases / "single_file_original/model_prefixed.safetensors");
  REQUIRE(original.size() == 3);
  CHECK(original[0] == "Wan transformer, Wan's own naming, prefix model.diffusion_model.");
  CHECK(original[1] ==
        "text to video: 2 blocks, width 24, ffn 64, 16 channels in, 16 out, text width 32");
  CHECK(original[2] == "F32 (69 tensors)");
  const auto scaled = lines(kCases / "single_file_fp8_scaled/model_fp8_scaled.safetensors");
  REQUIRE(scaled.size() == 3);
  CHECK(scaled[2] == "F16 (43 tensors), F8_E4M3 (26 tensors, 26 with a scale)");
  const auto lora = lines(kCases / "t2v_lora_original/lora.safetensors");
  REQUIRE(lora.size() == 3);
  CHECK(lora[0].starts_with("LoRA file for Wan, keys like diffusion_model.blocks."));
  CHECK(lora[1] == "25 matrices of rank 6, alpha 2, 3, 4.5");
  CHECK(lora[2].starts_with("44 differences: "));
  CHECK(lines(kCases / "t2v_lora_diffusers/lora_with_metadata.safetensors").at(1) ==
        "19 matrices of rank 4, alpha 2 in the header");
  CHECK(lines(kCases / "single_file_fp8_scaled/fp8_code_table.safetensors").empty());
}

}  // namespace diptych
