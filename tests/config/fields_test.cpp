#include "lib/config/fields.h"

#include <algorithm>
#include <set>

#include "lib/config/family_fields.h"
#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

std::string error_of(std::string_view field, const std::string& text) {
  Options options = default_options(bagel_config());
  return message_of([&] { assign(all_fields()[field_index(field)], options, text, "--x"); });
}

std::string after(std::string_view field, const std::string& text) {
  Options options = default_options(bagel_config());
  const Field& entry = all_fields()[field_index(field)];
  assign(entry, options, text, "--x");
  return value_text(entry, options);
}

TEST_CASE("every field has one name, and flags that nobody else has") {
  std::set<std::string_view> names, flags;
  for (const Field& field : all_fields()) {
    CHECK(names.insert(field.name).second);
    CHECK_FALSE(field.help.empty());
    for (const std::string_view flag : long_names(field.flags)) CHECK(flags.insert(flag).second);
  }
  CHECK(names.size() > 25);
}

std::vector<std::string_view> names_where(bool (*chosen)(const Field&)) {
  std::vector<std::string_view> names;
  for (const Field& field : all_fields()) {
    if (chosen(field)) names.push_back(field.name);
  }
  return names;
}

// A new field is put here on purpose: it may give an item of a batch its own value, or not.
TEST_CASE("fields of a request, of the whole batch") {
  const auto of_batch = names_where([](const Field& field) { return !is_of_request(field); });
  CHECK(of_batch == std::vector<std::string_view>{"config",
                                                  "pipeline",
                                                  "model",
                                                  "inputs",
                                                  "enhance_picture_instructions",
                                                  "enhance_clip_instructions",
                                                  "read_attention",
                                                  "read_attention_self",
                                                  "paint_attention",
                                                  "paint_attention_self",
                                                  "kernels",
                                                  "device",
                                                  "read_device",
                                                  "connector",
                                                  "dtype",
                                                  "quantization",
                                                  "tuned_config_dir",
                                                  "load_format",
                                                  "cfg_parallel_size",
                                                  "ulysses_degree",
                                                  "ring_degree",
                                                  "read_enforce_eager",
                                                  "offload",
                                                  "vae_dtype",
                                                  "max_vram",
                                                  "progress"});
}

TEST_CASE("fields of painting, of them those that a shared forward has once") {
  CHECK(names_where(is_shared_by_forwards) ==
        std::vector<std::string_view>{"steps", "cfg_text_scale", "cfg_img_scale", "cfg_interval",
                                      "cfg_renorm_type", "cfg_renorm_min", "timestep_shift",
                                      "cfg_mode", "enforce_eager", "cache_mode", "cache_threshold",
                                      "cache_calibration", "cache_report", "vae_tiling"});
  CHECK(names_where([](const Field& field) {
          return is_of_painting(field) && !is_shared_by_forwards(field);
        }) == std::vector<std::string_view>{
                  "negative_prompt", "enhance_prompt", "enhancer", "enhancer_drafter",
                  "enhance_instructions", "enhance_picture_instructions",
                  "enhance_clip_instructions", "enhance_max_tokens", "format", "quality", "crf",
                  "width", "height", "video_frames", "fps", "noise"});
}

TEST_CASE("requests share forwards where every value of painting is the same") {
  const RunConfig a = default_options(bagel_config()).run;
  RunConfig b = a;
  b.sampling.seed = 7;
  b.sampling.width = 64;
  b.negative_prompt = "blue";
  CHECK(may_share_forwards(a, b));
  for (const auto& [name, text] :
       {std::pair{"steps", "3"}, std::pair{"cfg_interval", "0.1,0.2"},
        std::pair{"cfg_renorm_type", "channel"}, std::pair{"cache_calibration", "a.json"},
        std::pair{"enforce_eager", "true"}}) {
    CAPTURE(name);
    Options other = default_options(bagel_config());
    assign(all_fields()[field_index(name)], other, text, "");
    CHECK_FALSE(may_share_forwards(a, other.run));
  }
}

TEST_CASE("every default passes its own check and comes out as it was") {
  const Options defaults = default_options(bagel_config());
  for (const Field& field : all_fields()) {
    CAPTURE(field.name);
    const std::string text = value_text(field, defaults);
    if (text.empty() || !bagel_config().uses(field.name)) continue;
    Options options = default_options(bagel_config());
    assign(field, options, text, "--x");
    CHECK(value_text(field, options) == text);
  }
}

TEST_CASE("good values arrive") {
  CHECK(after("steps", "2") == "2");
  CHECK(after("width", "1040") == "1040");
  CHECK(after("seed", "18446744073709551615") == "18446744073709551615");
  CHECK(after("cfg_text_scale", "0") == "0");
  CHECK(after("cfg_text_scale", "7.5e0") == "7.5");
  CHECK(after("cfg_interval", "0,1") == "0,1");
  CHECK(after("cfg_interval", "0.25,0.75") == "0.25,0.75");
  CHECK(after("cfg_renorm_type", "text_channel") == "text_channel");
  CHECK(after("device", "cuda:3") == "cuda:3");
  CHECK(after("device", "gpu") == "cuda");
  CHECK(after("device", "gpu:1") == "cuda:1");
  CHECK(after("dtype", "bf16") == "bfloat16");
  CHECK(after("dtype", "fp32") == "float32");
  CHECK(after("paint_attention", "FLASH_ATTN") == "flash");
  CHECK(after("read_attention_self", "") == "");
  CHECK(after("trace_filter", "kv.*;step000.*") == "kv.*;step000.*");
  CHECK(after("inputs", R"([{"image":"a b.png"},{"text":""}])") ==
        R"([{"image":"a b.png"},{"text":""}])");
  CHECK(after("think", "on") == "true");
  CHECK(after("think", "0") == "false");
}

TEST_CASE("bad values say what was found and what is expected") {
  CHECK(error_of("steps", "1") == "--x: 1 makes 0 updates; expected at least 2");
  CHECK(error_of("steps", "0") == "--x: 0 is out of range; expected 2 to 10000");
  CHECK(error_of("steps", "-5") == "--x: -5 is out of range; expected 2 to 10000");
  CHECK(error_of("steps", "99999999999999999999") ==
        "--x: 99999999999999999999 is out of range; expected 2 to 10000");
  for (const char* text : {"abc", "20x", "", " 20", "2.5", "0x10", "1e2", "+2", "-", "nan"}) {
    CHECK(error_of("steps", text) == fmt::format("--x: '{}' is not a whole number", text));
  }
  CHECK(error_of("width", "1000") == "--x: 1000 is not a multiple of 16; nearest are 992 and 1008");
  CHECK(error_of("width", "8") == "--x: 8 is not a multiple of 16; nearest is 16");
  CHECK(
      error_of("width", "0") ==
      "--x: 0 is out of range; expected a multiple of 16 from 16 to 65536, less with some models");
  CHECK(error_of("height", "-16") ==
        "--x: -16 is out of range; expected a multiple of 16 from 16 to 65536, less with some "
        "models");
  CHECK(error_of("height", "65552") ==
        "--x: 65552 is out of range; expected a multiple of 16 from 16 to 65536, less with some "
        "models");
  CHECK(error_of("batch_count", "0") == "--x: 0 is out of range; expected 1 to 100000");
  CHECK(error_of("seed", "-2") ==
        "--x: '-2' is not a whole number from 0 to 18446744073709551615, nor random");
  CHECK(error_of("dtype", "fp16") ==
        "--x: 'fp16' is not supported: the released weights are bfloat16, whose range float16 does "
        "not have; expected bfloat16, which takes as much memory");
  CHECK(error_of("seed", "18446744073709551616").find("is not a whole number") !=
        std::string::npos);
  CHECK(error_of("cfg_text_scale", "-1") == "--x: -1 is out of range; expected at least 0");
  for (const char* text : {"nan", "inf", "-inf", "4,0", "1e999", "x", ""}) {
    CHECK(error_of("cfg_text_scale", text) ==
          fmt::format("--x: '{}' is not a finite number", text));
  }
  CHECK(error_of("timestep_shift", "0") == "--x: 0 is out of range; expected more than 0");
  CHECK(error_of("cfg_interval", "0.4") ==
        "--x: '0.4' is not an interval; expected LO,HI, such as 0.4,1");
  CHECK(error_of("cfg_interval", "0,0.5,1").find("is not an interval") != std::string::npos);
  for (const char* text : {"1,0.4", "0.5,0.5", "-0.1,1", "0,1.01"}) {
    CHECK(error_of("cfg_interval", text) ==
          fmt::format("--x: {} is out of range; expected 0 <= LO < HI <= 1", text));
  }
  CHECK(error_of("cfg_interval", "0,nan") == "--x: 'nan' is not a finite number");
  CHECK(error_of("cfg_renorm_type", "chanel") ==
        "--x: unknown value 'chanel' (did you mean 'channel'? known: global, channel, "
        "text_channel, none)");
  CHECK(error_of("task", "t2v") ==
        "--x: 't2v' is of videos, which bagel does not make (known: auto, t2i, edit, understand, "
        "chat); --task, -c or -m for the whole list chooses another model");
  CHECK(error_of("think", "maybe") == "--x: unknown value 'maybe'; expected true or false");
  CHECK(
      error_of("inputs", "a.png").starts_with("--x: 'a.png' is no list of inputs; expected such"));
  CHECK(
      error_of("inputs", R"([{"audio":"a.mp3"}])") ==
      R"(--x: '{"audio":"a.mp3"}' is no input; expected {"text": ...}, {"image": ...} or {"video": ...})");
  for (const char* text : {"gpux", "gpu:", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", ""}) {
    CHECK(error_of("device", text) ==
          fmt::format("--x: unknown value '{}' (known: auto, cpu, cuda, cuda:N)", text));
  }
  CHECK(error_of("paint_attention", "flsh") ==
        "--x: unknown attention backend 'flsh' (did you mean 'flash'? known: auto, math, sdpa, "
        "flash, cudnn, hopper); also FLASH_ATTN, TORCH_SDPA, CUDNN_ATTN");
  CHECK(error_of("negative_prompt", "ok\xC3") == "--x: not valid UTF-8: byte 0xC3 at offset 2");
  CHECK(error_of("negative_prompt", std::string("a\0b", 3)) == "--x: a NUL character at offset 1");
  CHECK(error_of("model", "") == "--x: is empty; expected a path");
}

TEST_CASE("a random seed is drawn, once for each time it is asked for") {
  const Field& field = all_fields()[field_index("seed")];
  std::set<std::string> drawn;
  for (const char* text : {"random", "-1", "random", "-1"}) {
    Options options;
    assign(field, options, text, "--x");
    CHECK(options.run.sampling.seed_drawn);
    CHECK(options.run.sampling.seed <= 0xFFFFFFFFu);
    drawn.insert(value_text(field, options));
    assign(field, options, "7", "--x");
    CHECK_FALSE(options.run.sampling.seed_drawn);
    CHECK(value_text(field, options) == "7");
  }
  CHECK(drawn.size() > 1);
}

TEST_CASE("an alias is of one flag alone") {
  std::set<std::string_view> names;
  const auto add = [&](std::string_view flags) {
    for (const std::string_view name : long_names(flags)) {
      CAPTURE(name);
      CHECK(names.insert(name).second);
    }
  };
  for (const Field& field : all_fields()) add(field.flags), add(field.aliases);
  for (const FlagGroup& group : all_flag_groups()) add(group.flags), add(group.aliases);
  CHECK(names.contains("num-inference-steps"));
}

TEST_CASE("names of flags and variables") {
  CHECK(flag_label("--cfg-scale,--cfg-text-scale") == "--cfg-scale/--cfg-text-scale");
  CHECK(flag_label("-s,--seed") == "--seed");
  CHECK(environment_name("cfg-text-scale") == "DIPTYCH_CFG_TEXT_SCALE");
}

}  // namespace
}  // namespace diptych
