#include "lib/batch/dataset.h"

#include <doctest/doctest.h>

#include "tests/support/folder.h"

namespace diptych {
namespace {

using Turns = std::vector<std::string>;

Dataset read(const std::string& lines, DatasetKind kind = DatasetKind::automatic) {
  const test::Folder folder;
  return read_dataset(folder.write("set.jsonl", lines), kind);
}

std::string error_of(const std::string& lines, DatasetKind kind = DatasetKind::automatic) {
  const test::Folder folder;
  const auto file = folder.write("set.jsonl", lines);
  std::string message = test::message_of([&] { read_dataset(file, kind); });
  const std::string place = folder.path().string() + "/";
  if (message.starts_with(place)) message.erase(0, place.size());
  return message;
}

constexpr const char* kBoxed =
    "\nPlease reason step by step, and put your final answer within \\boxed{}.";

TEST_CASE("rows of the published sets become prompts as the reference asks them") {
  const Dataset gsm8k = read(R"({"question": "How many?", "answer": "3 + 4\n#### 7"})");
  CHECK(gsm8k.kind == DatasetKind::gsm8k);
  CHECK(gsm8k.name == "set");
  CHECK(gsm8k.rows[0].turns == Turns{std::string("How many?") + kBoxed});
  CHECK(gsm8k.rows[0].answer == " 7");

  const Dataset math = read(R"({"problem": "x?", "answer": "\\frac{1}{2}", "level": 3})");
  CHECK(math.kind == DatasetKind::math500);
  CHECK(math.rows[0].turns == Turns{std::string("x?") + kBoxed});
  CHECK(math.rows[0].answer == "\\frac{1}{2}");

  const Dataset code = read(R"({"prompt": "def f():\n", "entry_point": "f", "test": ""})");
  CHECK(code.kind == DatasetKind::humaneval);
  CHECK(code.rows[0].turns ==
        Turns{"Write a solution to the following problem and make sure that it passes the "
              "tests:\n```python\ndef f():\n\n```"});

  const Dataset mbpp = read(R"({"text": "Write f.", "test_list": []})");
  CHECK(mbpp.kind == DatasetKind::mbpp);
  CHECK(mbpp.rows[0].turns == Turns{"Write f."});

  const Dataset chat = read(R"({"question_id": 81, "turns": ["a", "b"]})"
                            "\n\n"
                            R"({"turns": ["c"]})");
  CHECK(chat.kind == DatasetKind::mt_bench);
  REQUIRE(chat.rows.size() == 2);
  CHECK(chat.rows[0].turns == Turns{"a", "b"});
  CHECK(read(R"({"prompt": ["a", "b"]})").rows[0].turns == Turns{"a", "b"});

  const Dataset alpaca = read(R"({"instruction": "Add.", "input": "1 2", "output": "3"})"
                              "\n"
                              R"({"instruction": "Sing.", "input": "", "output": ""})");
  CHECK(alpaca.kind == DatasetKind::alpaca);
  CHECK(alpaca.rows[0].turns == Turns{"Add.\n\nInput:\n1 2"});
  CHECK(alpaca.rows[1].turns == Turns{"Sing."});

  CHECK(read(R"({"question": "Why?"})").rows[0].turns == Turns{"Why?"});
  CHECK(read(R"({"prompt": "x", "entry_point": "f"})", DatasetKind::prompts).rows[0].turns ==
        Turns{"x"});
}

TEST_CASE("a row that cannot be read is an error with file and line") {
  CHECK(error_of("{\"prompt\": \"a\"}\nnot JSON\n").starts_with("set.jsonl:2"));
  CHECK(error_of("{\"prompt\": \"a\"}\n[]") == "set.jsonl:2: found [], expected an object");
  CHECK(error_of("\n{\"id\": 1}") ==
        "set.jsonl:2: no kind of row that is known; expected prompt, question, turns, "
        "instruction or problem");
  CHECK(error_of("{\"turns\": []}") == "set.jsonl:1: turns: found [], expected a list of texts");
  CHECK(error_of("{\"turns\": [\"a\", 3]}") == "set.jsonl:1: turns: found 3, expected a text");
  CHECK(error_of("{\"prompt\": \"a\"}", DatasetKind::gsm8k) ==
        "set.jsonl:1: question: not given; expected a text");
  CHECK(error_of("\n") == "set.jsonl: holds no row");
}

}  // namespace
}  // namespace diptych
