// Fields that a family of texts adds, and requests whose prompt stands in a file.
#include <doctest/doctest.h>

#include "lib/config/resolve.h"
#include "lib/pipelines/qwen3_dflash/family_config.h"
#include "lib/pipelines/qwen3_dflash/settings.h"
#include "lib/request/files_read.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using Texts = std::vector<std::string>;

class Request {
 public:
  Request() {
    folder_.write("model/config.json", R"({"architectures": ["Qwen3ForCausalLM"]})");
    sources_.families = {&qwen3_config()};
    flag("-m,--model", {(folder_ / "model").string()});
  }
  void flag(const std::string& flags, const Texts& texts) { sources_.flags[flags] = texts; }
  void prompt(const std::string& text) { sources_.inputs.push_back({MediaKind::text, text}); }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return folder_.write(name, text);
  }
  Resolved resolve() const {
    Sources sources = sources_;
    sources.environment = {variables};
    return diptych::resolve(sources);
  }
  Qwen3Settings own() const { return resolve().options.run.own.get<Qwen3Settings>(); }
  std::map<std::string, std::string> variables;

 private:
  test::Folder folder_;
  Sources sources_;
};

const Field& field_named(std::string_view name) {
  return qwen3_config().fields[field_index(name, qwen3_config().fields)];
}

TEST_CASE("a folder is Qwen3's by the architectures of its config") {
  const test::Folder folder;
  CHECK_FALSE(qwen3_config().owns(folder.path()));
  folder.write("config.json", R"({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"})");
  CHECK_FALSE(qwen3_config().owns(folder.path()));
  folder.write("config.json", R"({"architectures": ["Qwen3ForCausalLM"]})");
  CHECK(qwen3_config().owns(folder.path()));
}

TEST_CASE("the defaults are those of the reference") {
  Request request;
  request.prompt("a");
  const RunConfig run = request.resolve().options.run;
  CHECK(run.task == "chat");
  CHECK(run.makes == MediaKind::text);
  CHECK(run.text.max_tokens == 2048);
  CHECK(run.text.temperature == 0);
  CHECK_FALSE(request.own().enable_thinking);
  CHECK(request.own().block_size == 0);
}

TEST_CASE("stop strings are texts as they stand, one a flag") {
  Request request;
  request.flag("--stop", {"a;b", "[\"c\"]", "\n\n"});
  const Texts expected = {"a;b", "[\"c\"]", "\n\n"};
  CHECK(request.own().stop == expected);
  // What a record or another setting is told gives the same again.
  Resolved resolved = request.resolve();
  const std::string text = value_text(field_named("stop"), resolved.options);
  assign(field_named("stop"), resolved.options, text, "again");
  CHECK(resolved.options.run.own.get<Qwen3Settings>().stop == expected);
  CHECK(config_table(resolved).find("stop: [\"a;b\",\"[\\\"c\\\"]\",\"\\n\\n\"]") !=
        std::string::npos);
}

TEST_CASE("stop strings of variables and stage configs") {
  Request request;
  request.variables["DIPTYCH_STOP"] = "a;b";
  CHECK(request.own().stop == Texts{"a", "b"});
  request.variables["DIPTYCH_STOP"] = "[\"a;b\"]";
  CHECK(request.own().stop == Texts{"a;b"});
  request.variables.clear();
  const auto file = request.write(
      "qwen.yaml",
      "pipeline: qwen3_dflash\nstages:\n  - stage_id: 0\n    default_sampling_params:\n"
      "      stop: [\"a;b\", c]\n      seed: 3\n      extra_args: {block_size: 4}\n");
  request.flag("-c,--config", {file.string()});
  CHECK(request.own().stop == Texts{"a;b", "c"});
  CHECK(request.own().block_size == 4);
  CHECK(request.resolve().options.run.sampling.seed == 3);
}

TEST_CASE("stop strings that are no texts are refused where they stand") {
  const auto error = [](Request& request) -> std::string {
    try {
      request.own();
    } catch (const InputError& refused) {
      return refused.what();
    }
    return "";
  };
  Request flag;
  flag.flag("--stop", {"a", "\xff"});
  CHECK(error(flag) == "--stop: not valid UTF-8: byte 0xFF at offset 0");
  for (const char* text : {"[\"a\", \"b\"", "[5]", "{\"a\": 1}"}) {
    Request variable;
    variable.variables["DIPTYCH_STOP"] = text;
    CHECK(error(variable) == fmt::format("DIPTYCH_STOP: '{}' is no list of texts; expected such as "
                                         "[\"a\", \"b\"]",
                                         text));
  }
  for (const char* stop : {"[a, 5]", "5"}) {
    Request request;
    const auto file =
        request.write("qwen.yaml", fmt::format("pipeline: qwen3_dflash\nstages:\n  - stage_id: 0\n"
                                               "    default_sampling_params: {{stop: {}}}\n",
                                               stop));
    request.flag("-c,--config", {file.string()});
    CHECK(error(request).ends_with("stop: expected a text, found the number 5"));
  }
}

TEST_CASE("a stage config of an unknown family is told of before its keys") {
  Request request;
  const auto file = request.write(
      "qwen.yaml", "pipeline: qwen4\nstages:\n  - stage_id: 0\n    engine_extras: {no_key: 1}\n");
  request.flag("-c,--config", {file.string()});
  CHECK_THROWS_WITH_AS(request.resolve(),
                       doctest::Contains("qwen.yaml:1:11: pipeline: unknown family 'qwen4'"),
                       InputError);
}

TEST_CASE("graphs are switched off by a flag and by the key of the one stage") {
  Request request;
  request.prompt("a");
  CHECK_FALSE(request.resolve().options.run.enforce_eager);
  const auto file = request.write(
      "qwen.yaml", "pipeline: qwen3_dflash\nstages:\n  - stage_id: 0\n    enforce_eager: true\n");
  request.flag("-c,--config", {file.string()});
  CHECK(request.resolve().options.run.enforce_eager);
  CHECK_FALSE(request.resolve().options.run.read_enforce_eager);
  Request other;
  other.prompt("a");
  other.flag("--enforce-eager", {"true"});
  CHECK(other.resolve().options.run.enforce_eager);
}

TEST_CASE("a file of messages needs no prompt, and is no place for an output") {
  Request request;
  const auto file = request.write("chat.jsonl", "");
  CHECK(request.resolve().options.run.inputs.empty());
  CHECK(request.resolve().options.run.makes == MediaKind::text);
  request.flag("--messages", {file.string()});
  const RunConfig run = request.resolve().options.run;
  REQUIRE(run.inputs.size() == 1);
  CHECK(run.inputs[0].text.empty());
  CHECK(role_of_file(run, file) == "the messages");
}

TEST_CASE("files of the drafter are files of the model") {
  Request request;
  const auto file = request.write("drafter/model.safetensors", "x");
  request.flag("--draft-model", {file.parent_path().string()});
  CHECK(role_of_file(request.resolve().options.run, file) == kModelFile);
}

}  // namespace
}  // namespace diptych
