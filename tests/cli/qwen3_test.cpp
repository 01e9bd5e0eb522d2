// Texts of a tiny trained Qwen3, with its drafter and without, from the command line.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/text_file.h"
#include "tests/cli/process.h"

using namespace diptych;
using namespace diptych::test;

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kGoldens = DIPTYCH_SOURCE_DIR "/tests/goldens/dflash";
const std::string kTarget = kGoldens + "/checkpoint_trained/target";
const std::string kDrafter = kGoldens + "/checkpoint_trained/drafter_b16";
constexpr const char* kCount = "Count from 103 to 114.";
constexpr const char* kCounted =
    "103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118.";

std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
const std::vector<std::string> kPlain = {"generate", "-m", kTarget, "--device", "cpu"};
const std::vector<std::string> kDrafted = with(kPlain, {"--draft-model", kDrafter});

// The recorded prompts with their texts, the end marker left out.
std::vector<std::pair<std::string, std::string>> recorded_texts() {
  const Json json = Json::parse(read_text_file(kGoldens + "/cases/trained_b16_greedy/case.json"));
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Json& prompt : json.at("prompts")) {
    std::string text = prompt.at("new_text");
    constexpr std::string_view kEnd = "<|im_end|>";
    if (text.ends_with(kEnd)) text.resize(text.size() - kEnd.size());
    texts.emplace_back(prompt.at("chat_user").get<std::string>(), text);
  }
  return texts;
}

Outcome run_with_input(const std::vector<std::string>& arguments, const std::string& input) {
  Command command;
  command.arguments = arguments;
  command.input = input;
  return run(command);
}

}  // namespace

TEST_CASE("a text is printed, the same with the drafter, without and in pieces") {
  for (const auto& [prompt, text] : recorded_texts()) {
    const Outcome drafted = run(with(kDrafted, {"-p", prompt}));
    CAPTURE(drafted.err);
    CHECK(drafted.code == 0);
    CHECK(drafted.out == text + "\n");
    CHECK(drafted.err.find("tokens a verification of 16") != std::string::npos);
  }
  const Outcome plain = run(with(kPlain, {"-p", kCount}));
  CHECK(plain.out == std::string(kCounted) + "\n");
  CHECK(plain.err.find("verification") == std::string::npos);
  const Outcome eager = run(with(kDrafted, {"-p", kCount, "--enforce-eager"}));
  CHECK(eager.out == plain.out);
  CHECK(eager.err.find("enforce_eager: has no effect on the CPU") != std::string::npos);
  const Outcome narrow = run(with(kDrafted, {"-p", kCount, "--block-size", "4"}));
  CHECK(narrow.out == std::string(kCounted) + "\n");
  CHECK(narrow.err.find("tokens a verification of 4") != std::string::npos);
}

TEST_CASE("a text is written to a file, of a prompt from stdin") {
  const Folder folder;
  const std::string file = folder.file("answer.txt");
  const Outcome outcome = run_with_input(with(kDrafted, {"-p", "-", "-o", file}), kCount);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(outcome.out == file + "\n");
  CHECK(read_text_file(file) == std::string(kCounted) + "\n");
  const Outcome picture = run(with(kDrafted, {"-p", kCount, "-o", folder.file("a.png")}));
  CHECK(picture.code == 2);
}

TEST_CASE("a text ends at a stop string, at its limit, and behind neither where that is asked") {
  CHECK(run(with(kDrafted, {"-p", kCount, "--stop", "108", "--stop", "; "})).out ==
        "103, 104, 105, 106, 107, \n");
  CHECK(run(with(kDrafted, {"-p", kCount, "--stop", "; "})).out == std::string(kCounted) + "\n");
  const Outcome cut = run(with(kDrafted, {"-p", kCount, "--max-tokens", "4"}));
  CHECK(cut.out == "103,\n");
  CHECK(cut.err.find("stopped by --max-tokens 4") != std::string::npos);
  const Outcome on = run(with(kDrafted, {"-p", kCount, "--ignore-eos", "--max-tokens", "100"}));
  CHECK(on.code == 0);
  CHECK(on.out.starts_with(kCounted));
  CHECK(on.out.size() > std::string(kCounted).size() + 1);
}

TEST_CASE("a raw prompt is gone on with") {
  const std::string chat =
      "<|im_start|>user\nCount from 103 to 114.<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
      "</think>\n\n";
  const Outcome raw =
      run_with_input(with(kDrafted, {"--prompt-format", "raw", "-p", "-"}), chat + "\n");
  CAPTURE(raw.err);
  CHECK(raw.out.starts_with("103"));
}

TEST_CASE("a conversation goes on, with a system prompt and with thoughts") {
  const Folder folder;
  const std::string file = folder.file("chat.jsonl");
  folder.write("chat.jsonl",
               "{\"role\": \"user\", \"content\": \"Hi\"}\n"
               "{\"role\": \"assistant\", \"content\": \"Hello\"}\n"
               "{\"role\": \"user\", \"content\": \"Count from 103 to 114.\"}\n");
  const Outcome alone = run(with(kDrafted, {"--messages", file, "--max-tokens", "32"}));
  CAPTURE(alone.err);
  CHECK(alone.code == 0);
  CHECK_FALSE(alone.out.empty());
  const Outcome next = run(with(kDrafted, {"--messages", file, "--system", "Be brief.", "-p",
                                           "And on.", "--enable-thinking", "--max-tokens", "8"}));
  CAPTURE(next.err);
  CHECK(next.code == 0);
  folder.write("chat.jsonl", "{\"role\": \"assistant\", \"content\": \"Hello\"}\n");
  const Outcome unasked = run(with(kDrafted, {"--messages", file}));
  CHECK(unasked.code == 2);
  CHECK(unasked.err.find("the messages end with one of the assistant") != std::string::npos);
  folder.write("chat.jsonl", "{\"role\": \"user\"}\n");
  CHECK(run(with(kDrafted, {"--messages", file})).err.find("chat.jsonl:1: content: not given") !=
        std::string::npos);
}

TEST_CASE("sampled texts follow their seed, and drafts change nothing that greedy texts have") {
  const auto sampled = [](const char* seed) {
    return run(with(kDrafted,
                    {"-p", kCount, "--temperature", "5", "--seed", seed, "--max-tokens", "40"}))
        .out;
  };
  CHECK(sampled("1") == sampled("1"));
  CHECK(sampled("1") != sampled("2"));
}

TEST_CASE("a replay with another drafter says that the model is the right one") {
  const Folder folder;
  const std::string answer = folder.file("a.json");
  REQUIRE(run(with(kDrafted, {"-p", kCount, "--max-tokens", "4", "-o", answer})).code == 0);
  const auto replay = [&](const std::string& drafter) {
    return run(
        {"inspect", answer, "--replay", "-m", kTarget, "--weights", drafter, "--device", "cpu"});
  };
  CHECK(replay(kDrafter).code == 0);
  const std::string namesake = folder.file("other/drafter_b16");
  std::filesystem::create_directories(namesake);
  std::filesystem::copy(kGoldens + "/checkpoint_trained/drafter_b8", namesake);
  const Outcome other = replay(namesake);
  CHECK(other.code == 2);
  CHECK(other.err.find("; the model's are the same, give others with --weights") !=
        std::string::npos);
  CHECK(run({"generate", "-m", namesake, "-p", "a"})
            .err.find(": it is a drafter, which belongs to") != std::string::npos);
  // In the folder of a recorded case, too.
  CHECK(run({"generate", "-m", kGoldens + "/checkpoint_trained/drafter_b8", "-p", "a"})
            .err.find(": it is a drafter, which belongs to") != std::string::npos);
}

TEST_CASE("what has no meaning is refused by its flag") {
  const auto refused = [](const std::vector<std::string>& words) {
    const Outcome outcome = run(words);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  const auto says = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says(refused(with(kPlain, {"-p", "a", "--block-size", "8"})),
       "--block-size: given without --draft-model DIR");
  says(refused(with(kPlain, {"-p", "a", "--adaptive-drafting"})), "given without --draft-model");
  says(refused(with(kPlain, {"-p", "a", "--adaptive-drafting", "--draft-model", kDrafter,
                             "--temperature", "0.5"})),
       "--adaptive-drafting: given together with --temperature 0.5: the text would depend on");
  says(refused(with(kPlain, {"-p", "a", "--prompt-format", "raw", "--system", "b"})),
       "--system: has no meaning with --prompt-format raw");
  says(refused(with(kPlain, {"-p", "", "--prompt-format", "raw"})), "--prompt: is empty");
  says(refused(with(kPlain, {"-p", "a", "--steps", "3"})), "--steps");
  says(refused(with(kPlain, {"-p", "a", "-i", "b.png"})), "no task of qwen3_dflash reads pictures");
  says(refused(with(kPlain, {"-p", "a", "--top-k", "3"})), "--top-k: given without --temperature");
  says(refused(with(kPlain, {"-p", "a", "--max-tokens", "40960"})), "--max-tokens: found 40960");
  std::string longer;
  for (int i = 0; i < 41000; ++i) longer += "1 ";
  says(refused(with(kPlain, {"-p", longer})), " the model 40960 positions; expected fewer");
  says(refused(with(kPlain, {"-p", "a", "--stop", ""})), "--stop: is empty");
  says(refused(with(kPlain, {"-p", "a", "--draft-model", kTarget})), "--draft-model");
  says(refused(with(kPlain, {"-p", "a", "--draft-model", "none"})), "--draft-model: none");
  says(refused(kPlain), "--prompt: not given");
  says(refused({"generate", "-m", kGoldens + "/../bagel/checkpoint", "-p", "a", "--draft-model",
                kDrafter}),
       "--draft-model: has no meaning where no text is written");
}

TEST_CASE("a drafter of a later kind is refused by the names of its keys") {
  const Folder folder;
  Json config = Json::parse(read_text_file(kDrafter + "/config.json"));
  const auto error_of = [&](const Json& changed) {
    folder.write("config.json", changed.dump());
    return run(with(kPlain, {"-p", "a", "--draft-model", folder.path().string()})).err;
  };
  Json later = config;
  later["dflash_config"]["selector_rank"] = 256;
  CHECK(error_of(later).find("dflash_config.selector_rank: found 256") != std::string::npos);
  Json grouped = config;
  grouped["conv_group_size"] = 4;
  CHECK(error_of(grouped).find("conv_group_size: found 4, expected no such key: a successor of "
                               "DFlash is not in this version") != std::string::npos);
  Json sliding = config;
  sliding["layer_types"] = {"full_attention", "sliding_attention"};
  CHECK(error_of(sliding).find("layer_types") != std::string::npos);
}

TEST_CASE("a template that is not Qwen3's is refused, and raw prompts are not") {
  const Folder folder;
  const fs::path model = folder.path() / "model";
  fs::copy(kTarget, model);
  const fs::path file = model / "tokenizer_config.json";
  Json config = Json::parse(read_text_file(file));
  config["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}";
  fs::permissions(file, fs::perms::owner_all);
  folder.write("model/tokenizer_config.json", config.dump());
  const std::vector<std::string> words = {"generate", "-m",    model.string(), "--device", "cpu",
                                          "-p",       "Count", "--max-tokens", "4"};
  const Outcome chat = run(words);
  CHECK(chat.code == 2);
  CHECK(chat.err.find("is not the template of Qwen3") != std::string::npos);
  CHECK(chat.err.find("--prompt-format raw") != std::string::npos);
  CHECK(run(with(words, {"--prompt-format", "raw"})).code == 0);
}

TEST_CASE("a batch writes several texts at once, each as alone") {
  const Folder folder;
  std::string list;
  for (const auto& [prompt, text] : recorded_texts())
    list += Json{{"prompt", prompt}}.dump() + "\n";
  list += Json{{"prompt", kCount}, {"stop", {"105", ";"}}}.dump() + "\n";
  folder.write("list.jsonl", list);
  for (const char* together : {"1", "3", "8"}) {
    const std::string out = folder.file(std::string("out") + together);
    const Outcome outcome =
        run({"batch", folder.file("list.jsonl"), "-o", out, "-m", kTarget, "--draft-model",
             kDrafter, "--device", "cpu", "--max-tokens", "128", "--batch-size", together});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    std::size_t number = 0;
    for (const auto& [prompt, text] : recorded_texts()) {
      CAPTURE(prompt);
      CHECK(read_text_file(fs::path(out) / ("000" + std::to_string(number++) + ".txt")) ==
            text + "\n");
    }
    CHECK(read_text_file(fs::path(out) / ("000" + std::to_string(number) + ".txt")) ==
          "103, 104, \n");
  }
}

TEST_CASE("texts with their records come out again: drafted, together, of a conversation") {
  const Folder folder;
  std::string list;
  for (const auto& [prompt, text] : recorded_texts())
    list += Json{{"prompt", prompt}}.dump() + "\n";
  folder.write("list.jsonl", list);
  folder.write("chat.jsonl",
               "{\"role\": \"user\", \"content\": \"Hi\"}\n"
               "{\"role\": \"assistant\", \"content\": \"Hello\"}\n"
               "{\"role\": \"user\", \"content\": \"Count from 103 to 114.\"}\n");
  const Outcome made = run({"batch", folder.file("list.jsonl"), "-o", folder.file("out"), "-m",
                            kTarget, "--draft-model", kDrafter, "--device", "cpu", "--max-tokens",
                            "24", "--batch-size", "3", "--format", "json", "--temperature", "0.8"});
  CAPTURE(made.err);
  REQUIRE(made.code == 0);
  const auto replay = [&](const std::string& name, const std::vector<std::string>& more = {}) {
    return run(with({"inspect", folder.file(name), "--replay", "-q", "-m", kTarget}, more));
  };
  const Json second = Json::parse(read_text_file(folder.file("out/0001.json")));
  CHECK(second["record"]["together"]["place"] == 1);
  CHECK(second["record"]["requested"]["draft_model"] == "drafter_b16");
  const Outcome lost = replay("out/0001.json");
  CHECK(lost.code == 2);
  CHECK(lost.err.find("was made with the weights 'drafter_b16'") != std::string::npos);
  const Outcome same = replay("out/0001.json", {"--weights", kDrafter});
  CAPTURE(same.err);
  CHECK(same.code == 0);

  // With its messages in another place, and with others.
  REQUIRE(run(with(kPlain, {"--messages", folder.file("chat.jsonl"), "--max-tokens", "8", "-o",
                            folder.file("chat.json")}))
              .code == 0);
  const Json chat = Json::parse(read_text_file(folder.file("chat.json")));
  CHECK(chat["record"]["inputs"][0]["messages"] == "chat.jsonl");
  CHECK(replay("chat.json").code == 0);
  fs::rename(folder.file("chat.jsonl"), folder.file("moved.jsonl"));
  const Outcome without = replay("chat.json");
  CHECK(without.code == 2);
  CHECK(without.err.find("was written from the messages 'chat.jsonl', sha256 ") !=
        std::string::npos);
  CHECK(without.err.find("which are neither beside it nor here; give them with --messages\n") !=
        std::string::npos);
  CHECK(replay("chat.json", {"--messages", folder.file("moved.jsonl")}).code == 0);
  folder.write("moved.jsonl", "{\"role\": \"user\", \"content\": \"Hi\"}\n");
  CHECK(replay("chat.json", {"--messages", folder.file("moved.jsonl")})
            .err.find("moved.jsonl: is a copy of none of the 1 conversation that ") !=
        std::string::npos);
  folder.write("chat.jsonl", "{}\n");
  CHECK(replay("chat.json")
            .err.find("are not the ones (" + folder.file("chat.jsonl") + " has other content)") !=
        std::string::npos);
}

TEST_CASE("a benchmark of a text tells acceptance, and the speed-up over plain decoding") {
  const std::vector<std::string> words = {
      "bench", "-m",        kTarget, "--draft-model", kDrafter, "--device", "cpu", "-p",
      kCount,  "--repeats", "2",     "--json",        "-"};
  const Outcome outcome = run(words);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.out);
  const Json& each = json.at("cases").at(0);
  CHECK(each.at("settings").size() == 2);
  const Json& drafting = each.at("settings").at(0).at("drafting");
  CHECK(drafting.at("block_size") == 16);
  CHECK(drafting.at("mean_acceptance").get<double>() == doctest::Approx(13.6666667));
  CHECK(drafting.at("position_rates").size() == 15);
  CHECK_FALSE(each.at("settings").at(1).contains("drafting"));
  CHECK(each.at("comparison").at("speed_up").at("median").get<double>() > 0);
  CHECK(each.at("comparison").at("same_answer") == true);
}

TEST_CASE("a benchmark of forced acceptance, of one text and of three at once") {
  const std::vector<std::string> words = {"bench",  "-m",
                                          kTarget,  "--draft-model",
                                          kDrafter, "--device",
                                          "cpu",    "--load-format",
                                          "dummy",  "--forced-acceptance",
                                          "6",      "--max-tokens",
                                          "24",     "-p",
                                          "x",      "--batch-sizes",
                                          "1,3",    "--repeats",
                                          "1",      "--json",
                                          "-"};
  const Outcome outcome = run(words);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.out);
  for (const std::int64_t texts : {1, 3}) {
    const Json& each = json.at("cases").at(texts == 1 ? 0 : 1);
    CHECK(each.at("name") == "chat-x" + std::to_string(texts));
    CHECK(each.at("together") == texts);
    const Json& forced = each.at("settings").at(0);
    CHECK(forced.at("drafting").at("mean_acceptance") == 6);
    CHECK(forced.at("drafting").at("verifications") == 4 * texts);
    CHECK(forced.at("runs").at(0).at("tokens") == 24 * texts);
    CHECK(each.at("settings").at(1).at("runs").at(0).at("tokens") == 24 * texts);
    CHECK(each.at("comparison").at("speed_up").at("median").get<double>() > 0);
  }
  CHECK(json.at("cases").at(1).at("settings").at(0).at("answers").size() == 3);
}

TEST_CASE("forced acceptance and batch sizes are refused where they have no meaning") {
  const auto error_of = [](std::vector<std::string> words) {
    words.insert(words.begin() + 1, {"-m", kTarget, "--device", "cpu", "-p", "x", "-q"});
    const Outcome outcome = run(words);
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK(error_of({"generate", "--draft-model", kDrafter, "--forced-acceptance", "6"}) ==
        "diptych: --forced-acceptance 6: the text would not be the model's; expected --load-format "
        "dummy\n");
  CHECK(error_of({"generate", "--load-format", "dummy", "--forced-acceptance", "6"}) ==
        "diptych: --forced-acceptance: given without --draft-model DIR\n");
  CHECK(error_of({"bench", "--draft-model", kDrafter, "--load-format", "dummy",
                  "--forced-acceptance", "17"}) ==
        "diptych: --forced-acceptance 17: a block has 16 tokens; expected at most as many\n");
  CHECK(error_of({"bench", "--draft-model", kDrafter, "--load-format", "dummy",
                  "--forced-acceptance", "6", "--adaptive-drafting"}) ==
        "diptych: --forced-acceptance 6: given together with --adaptive-drafting; expected one of "
        "them\n");
  CHECK(error_of({"bench", "--batch-sizes", "2,2"}) == "diptych: --batch-sizes: 2 given twice\n");
  CHECK(error_of({"bench", "--batch-sizes", "0"}) ==
        "diptych: --batch-sizes: 0 is out of range; expected 1 to 1024\n");
}

TEST_CASE("a benchmark over sets of questions, with answers in between and accuracy") {
  const Folder folder;
  folder.write("gsm8k.jsonl",
               "{\"question\": \"Count from 103 to 114.\", \"answer\": \"so #### 118\"}\n"
               "{\"question\": \"Alphabet from c.\", \"answer\": \"#### 3\"}\n");
  folder.write("chats.jsonl", "{\"turns\": [\"Count from 103 to 114.\", \"Alphabet from c.\"]}\n");
  const std::vector<std::string> words = {"bench",
                                          "-m",
                                          kTarget,
                                          "--draft-model",
                                          kDrafter,
                                          "--device",
                                          "cpu",
                                          "--max-tokens",
                                          "60",
                                          "--dataset",
                                          folder.file("gsm8k.jsonl"),
                                          "--dataset",
                                          folder.file("chats.jsonl")};
  const Outcome table = run(words);
  CAPTURE(table.err);
  REQUIRE(table.code == 0);
  CHECK(table.out.find("gsm8k (gsm8k): 2 rows, 2 answers") != std::string::npos);
  CHECK(table.out.find("chats (mt-bench): 1 row, 2 answers") != std::string::npos);
  CHECK(table.out.find("speed-up") != std::string::npos);
  CHECK(table.out.find("accuracy") != std::string::npos);
  CHECK(table.out.find("whose right answer is known") == std::string::npos);
  // A row without its answer is asked, and not judged.
  folder.write("partly.jsonl",
               "{\"question\": \"Alphabet from c.\", \"answer\": \"#### 3\"}\n"
               "{\"question\": \"Alphabet from c.\"}\n");
  const Outcome part = run({"bench", "-m", kTarget, "--device", "cpu", "--max-tokens", "5",
                            "--dataset", folder.file("partly.jsonl")});
  CAPTURE(part.err);
  CHECK(part.out.find("accuracy           0.0 % of the 1 whose right answer is known") !=
        std::string::npos);
  const Outcome outcome = run(with(words, {"--json", "-", "--max-samples", "1"}));
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.out);
  REQUIRE(json.at("datasets").size() == 2);
  const Json& set = json.at("datasets").at(0);
  CHECK(set.at("rows") == 1);
  CHECK(set.at("equal_texts") == 1);
  CHECK(set.at("drafting").at("histogram").size() == 17);
  CHECK(set.at("answers").at(0).at("text") == set.at("answers").at(0).at("plain").at("text"));
  CHECK(json.at("datasets").at(1).at("answers").at(1).at("turn") == 1);

  // What was measured before a row that cannot be served is shown.
  std::string longer;
  while (longer.size() < 200'000) longer += "Count from 103 to 114. ";
  folder.write("longer.jsonl",
               "{\"turns\": [\"Alphabet from c.\"]}\n{\"turns\": [\"Alphabet from c.\", \"" +
                   longer + "\"]}\n");
  const Outcome early =
      run({"bench", "-m", kTarget, "--device", "cpu", "--max-tokens", "60", "--dataset",
           folder.file("longer.jsonl"), "--json", folder.file("early.json")});
  CAPTURE(early.err);
  CHECK(early.code == 2);
  CHECK(early.err.find("longer.jsonl:2") != std::string::npos);
  CHECK(early.out.find("longer (mt-bench): 1 of 2 rows, 2 answers") != std::string::npos);
  const Json kept = Json::parse(read_text_file(folder.file("early.json")));
  CHECK(kept.at("datasets").at(0).at("asked") == 1);
  CHECK(kept.at("weights_hash").is_null());

  folder.write("broken.jsonl", "{\"question\": \"a\", \"answer\": \"1\"}\n{\n");
  const Outcome broken = run({"bench", "-m", kTarget, "--dataset", folder.file("broken.jsonl")});
  CHECK(broken.code == 2);
  CHECK(broken.err.find("broken.jsonl:2") != std::string::npos);
  const Outcome twice = run(with(words, {"--repeats", "3"}));
  CHECK(twice.code == 2);
  CHECK(twice.err.find("--repeats: has no meaning with --dataset") != std::string::npos);
  const Outcome unknown = run(with(words, {"--dataset-format", "gsm"}));
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("--dataset-format: unknown value 'gsm'") != std::string::npos);
  const Outcome alone = run({"bench", "-m", kTarget, "--max-samples", "3"});
  CHECK(alone.err.find("--max-samples: given without --dataset FILE") != std::string::npos);
}

TEST_CASE("Ctrl-C ends a text that is being written") {
  Command command;
  command.arguments =
      with(kDrafted, {"-p", kCount, "--ignore-eos", "--max-tokens", "30000", "--progress", "kv"});
  command.interrupt_after = "stage=answer";
  const Outcome outcome = run(command);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 130);
}
