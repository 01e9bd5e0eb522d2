// The session of Qwen3 on a tiny trained pair, against recorded texts of z-lab/dflash.
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/utf8.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/qwen3_dflash/family_config.h"
#include "lib/pipelines/qwen3_dflash/session.h"
#include "lib/pipelines/qwen3_dflash/settings.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/dflash";

Json recorded(const std::string& name) {
  return Json::parse(std::ifstream(kGoldens / "cases" / name / "case.json"));
}

RunConfig request_of(const std::string& prompt, bool drafts = true) {
  RunConfig run = default_options(qwen3_config()).run;
  run.task = "chat";
  run.makes = MediaKind::text;
  run.model = kGoldens / "checkpoint_trained/target";
  run.device = *parse_device("cpu");
  run.dtype = DtypeChoice::float32;
  run.inputs = {{prompt, {}}};
  run.text.max_tokens = 128;
  if (drafts)
    run.own.get<Qwen3Settings>().draft_model = kGoldens / "checkpoint_trained/drafter_b16";
  return run;
}

struct Written {
  std::vector<Text> texts;
  std::vector<std::vector<std::string>> pieces;  // of each text
};

class Runner {
 public:
  explicit Runner(const RunConfig& config) : session_(config, log_) {}
  Written run(const std::vector<RunConfig>& requests) {
    Written written;
    written.texts.resize(requests.size());
    written.pieces.resize(requests.size());
    std::vector<std::unique_ptr<Job>> jobs;
    JobGroup group;
    for (const RunConfig& request : requests) {
      jobs.push_back(session_.make_job(request));
      group.push_back(jobs.back().get());
    }
    Results results;
    results.result = [&](const Result& result, const Report&) {
      written.texts.at(result.request) = result.text();
    };
    results.piece = [&](std::size_t request, std::string_view piece) {
      written.pieces.at(request).emplace_back(piece);
    };
    Progress progress(log_, ProgressStyle::none);
    session_.run(group, progress, results);
    return written;
  }
  Session& session() { return session_; }

 private:
  Log log_{LogLevel::quiet};
  Qwen3Session session_;
};

std::string without_end(std::string text) {
  constexpr std::string_view kEnd = "<|im_end|>";
  if (text.ends_with(kEnd)) text.resize(text.size() - kEnd.size());
  return text;
}

TEST_CASE("recorded chats give the recorded texts and acceptance, with the drafter and without") {
  Runner drafted(request_of("")), plain(request_of("", false));
  const Json json = recorded("trained_b16_greedy");
  for (const Json& prompt : json.at("prompts")) {
    const std::string asked = prompt.at("chat_user");
    CAPTURE(asked);
    const Written with = drafted.run({request_of(asked)});
    CHECK(with.texts[0].text == without_end(prompt.at("new_text")));
    CHECK(with.texts[0].tokens == prompt.at("num_output_tokens").get<std::int64_t>());
    CHECK(with.texts[0].finish_reason == kFinishedItself);
    REQUIRE(with.texts[0].drafting.has_value());
    CHECK(with.texts[0].drafting->block_size == 16);
    CHECK(with.texts[0].drafting->acceptance ==
          prompt.at("acceptance_lengths").get<std::vector<std::int64_t>>());
    const Written without = plain.run({request_of(asked, false)});
    CHECK(without.texts[0].text == with.texts[0].text);
    CHECK_FALSE(without.texts[0].drafting.has_value());
  }
  CHECK(drafted.session().report().drafting->acceptance.size() > 6);
  CHECK(drafted.session().report().tokens > 100);
}

TEST_CASE("pieces are whole characters, and together the text") {
  Runner runner(request_of(""));
  const Written written = runner.run({request_of("Alphabet from c.")});
  std::string text;
  for (const std::string& piece : written.pieces[0]) {
    CHECK(check_utf8(piece) < 0x110000);
    text += piece;
  }
  CHECK(written.pieces[0].size() > 1);
  CHECK(text == written.texts[0].text);
}

TEST_CASE("texts that share forwards are those of one by one, each with its stop strings") {
  Runner runner(request_of(""));
  std::vector<RunConfig> requests;
  const Json json = recorded("trained_b16_greedy");
  for (const Json& prompt : json.at("prompts"))
    requests.push_back(request_of(prompt.at("chat_user")));
  requests.push_back(request_of("Count from 103 to 114."));
  requests.back().own.get<Qwen3Settings>().stop = {"105", "x"};
  for (const RunConfig& request : requests)
    CHECK(runner.session().may_share(request, requests.front()));
  const Written together = runner.run(requests);
  std::size_t i = 0;
  for (const Json& prompt : json.at("prompts")) {
    CHECK(together.texts[i].text == without_end(prompt.at("new_text")));
    CHECK(together.texts[i++].drafting->acceptance ==
          prompt.at("acceptance_lengths").get<std::vector<std::int64_t>>());
  }
  CHECK(together.texts[i].text == "103, 104, ");
  CHECK(together.texts[i].finish_reason == kFinishedItself);
}

TEST_CASE("sampled texts follow their own seeds, whatever is written beside them") {
  Runner runner(request_of(""));
  const auto sampled = [](std::uint64_t seed, const char* prompt) {
    RunConfig request = request_of(prompt);
    request.text.temperature = 5;
    request.text.max_tokens = 24;
    request.sampling.seed = seed;
    return request;
  };
  const RunConfig one = sampled(1, "Alphabet from c."), two = sampled(2, "Count from 3 to 9.");
  const Written both = runner.run({one, two});
  CHECK(runner.run({one}).texts[0].text == both.texts[0].text);
  CHECK(runner.run({two}).texts[0].text == both.texts[1].text);
  CHECK(runner.run({sampled(3, "Alphabet from c.")}).texts[0].text != both.texts[0].text);
}

TEST_CASE("requests share forwards only where they ask for texts of one kind") {
  Runner runner(request_of(""));
  const RunConfig base = request_of("a");
  RunConfig other = request_of("b");
  CHECK(runner.session().may_share(base, other));
  other.text.max_tokens = 5;
  CHECK_FALSE(runner.session().may_share(base, other));
  other = base;
  other.own.get<Qwen3Settings>().block_size = 4;
  CHECK_FALSE(runner.session().may_share(base, other));
  other = base;
  other.trace = "t.safetensors";
  CHECK_FALSE(runner.session().may_share(base, other));
  other = base;
  other.enforce_eager = true;
  CHECK_FALSE(runner.session().may_share(base, other));
}

TEST_CASE("a conversation in the request is part of the prompt") {
  Runner runner(request_of(""));
  RunConfig request = request_of("Count from 103 to 114.");
  request.history = {{ChatRole::user, "Hi"},
                     {ChatRole::assistant, "<think>\nplan\n</think>\n\nHello"}};
  const auto job = runner.session().make_job(request);
  const auto& own = dynamic_cast<const Qwen3Job&>(*job);
  const auto alone = runner.session().make_job(request_of("Count from 103 to 114."));
  CHECK(own.prompt.size() > dynamic_cast<const Qwen3Job&>(*alone).prompt.size());
  request.own.get<Qwen3Settings>().prompt_format = PromptFormat::raw;
  CHECK(test::message_of([&] { runner.session().make_job(request); }) ==
        "--prompt-format raw: a conversation has a format; expected chat");
}

}  // namespace
}  // namespace diptych
