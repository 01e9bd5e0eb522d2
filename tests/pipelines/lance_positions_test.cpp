// The position ids of Lance's branches against the recorded ones.
#include <algorithm>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/utf8.h"
#include "lib/ops/ops.h"
#include "lib/pipelines/lance/positions.h"
#include "tests/pipelines/lance_cases.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

namespace diptych {
namespace {

constexpr std::int64_t kAnswerTokens = 8;  // how far ids are compared behind "assistant\n"

// The recorded call SS of a branch: its tokens and, "position_ids", its ids.
void check_prefill(const test::RecordedSequence& recorded, const char* branch, std::size_t call,
                   const LanceReadSplit& read) {
  const std::string name = fmt::format("prefill.{}.seg{:02}.", branch, call);
  if (!recorded.has(name + "range")) return;
  const auto& split = read.split;
  const std::int64_t is_causal = split.mode == LanceSplitMode::causal ? 1 : 0;
  CHECK(at::equal(recorded.tensor(name + "range"),
                  at::tensor({split.begin, split.end, is_causal}, at::kLong)));
  CHECK(at::equal(recorded.tensor(name + "position_ids"), read.position_ids));
}

// Both branches of a sequence with a target. In the recorded calls of the unconditional branch a
// split is where it is in the conditional sequence.
void check_generation(const test::RecordedSequence& recorded) {
  const LanceLayout layout = recorded.layout(), rest = layout.without_caption();
  const Tensor cond = recorded.tensor("pos.cond"), uncond = recorded.tensor("pos.text_uncond");
  CHECK(at::equal(positions(layout), cond));
  CHECK(at::equal(positions(rest), uncond));
  if (recorded.has("pos.cond.raw"))
    CHECK(at::equal(raw_positions(layout), recorded.tensor("pos.cond.raw")));
  if (recorded.has("pos.text_uncond.raw"))
    CHECK(at::equal(raw_positions(rest), recorded.tensor("pos.text_uncond.raw")));

  const LanceReading read = conditional_reading(layout);
  const LanceReading without = text_unconditional_reading(layout, LanceUncondIds::conditional);
  CHECK(without.context.size() + 1 == read.context.size());
  for (std::size_t i = 0; i < read.context.size(); ++i)
    check_prefill(recorded, "cond", i, read.context[i]);
  for (std::size_t i = 0; i < without.context.size(); ++i)
    check_prefill(recorded, "text_uncond", i, without.context[i]);
  const LanceSplit& target = *layout.target_split();
  const LanceSplit& own = *rest.target_split();
  CHECK(at::equal(read.next, cond.slice(1, target.begin, target.end)));
  CHECK(at::equal(without.next, uncond.slice(1, own.begin, own.end)));

  std::vector<Tensor> all;
  const LanceReading alone = text_unconditional_reading(layout, LanceUncondIds::own);
  for (const LanceReadSplit& split : alone.context) all.push_back(split.position_ids);
  all.push_back(alone.next);
  CHECK(at::equal(at::cat(all, 1), uncond.slice(1, 0, own.end)));
}

void check_question(const test::RecordedSequence& recorded) {
  const LanceLayout cut = recorded.layout().cut_for_answer(test::lance_tokenizer());
  const Tensor ids = recorded.tensor("pos.cond");
  CHECK(at::equal(positions(cut), ids.slice(1, 0, cut.tokens())));
  const LanceReading read = conditional_reading(cut);
  const std::int64_t context = cut.tokens() - 1;
  REQUIRE(ids.size(1) > context + kAnswerTokens);
  for (std::int64_t i = 0; i < kAnswerTokens; ++i)
    CHECK(at::equal(read.next + i, ids.slice(1, context + i, context + i + 1)));
}

std::size_t check_all(bool plain) {
  std::size_t checked = 0;
  for (const auto& recorded : test::recorded_sequences()) {
    if ((check_utf8(recorded.prompt.text) < 0x300) != plain) continue;
    INFO(recorded.name);
    is_question(recorded.task) ? check_question(recorded) : check_generation(recorded);
    ++checked;
  }
  return checked;
}

TEST_CASE("recorded sequences: position ids of both branches") {
  CHECK(check_all(/*plain=*/true) >= 5);
}

TEST_CASE("recorded sequences to be normalised: position ids of both branches" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  CHECK(check_all(/*plain=*/false) >= 2);
}

LanceLayout layout_of(const LancePrompt& prompt, std::vector<LanceGrid> grids) {
  return LanceLayout::of(prompt, grids, test::lance_tokenizer());
}

TEST_CASE("an answer's sources are not shifted, an edit's are" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  const LanceLayout question = layout_of(render_question({"Look.", "What?"}), {{2, 2, 2}});
  CHECK(at::equal(positions(question), raw_positions(question)));

  const std::vector<LanceElement> elements = {
      {LanceMedium::text, "Add snow."}, {LanceMedium::image, ""}, {LanceMedium::image, ""}};
  // Two sources, so the target has fewer tokens than they have together and keeps its own ids.
  const LanceLayout edit = layout_of(render_prompt(LanceTask::image_edit, elements),
                                     {{1, 2, 2}, {1, 3, 3}, {1, 2, 1}, {1, 2, 2}, {1, 2, 2}});
  const Tensor raw = raw_positions(edit), ids = positions(edit);
  const LanceBlock &first = edit.blocks[0], &second = edit.blocks[2];
  CHECK(ids[0][first.begin].item<std::int64_t>() == 1000);
  const std::int64_t apart =
      raw[0][second.begin].item<std::int64_t>() - raw[0][first.begin].item<std::int64_t>();
  CHECK(ids[0][second.begin].item<std::int64_t>() == 1000 + apart);
  CHECK(at::equal(ids.slice(0, 1), raw.slice(0, 1)));
  const LanceSplit& target = *edit.target_split();
  CHECK(at::equal(ids.slice(1, target.begin), raw.slice(1, target.begin)));
}

TEST_CASE("branches are equal where there is no caption") {
  const LanceLayout layout = layout_of(render_prompt(LanceTask::t2i, {}), {{1, 2, 3}});
  const LanceReading read = conditional_reading(layout);
  for (const LanceUncondIds ids : {LanceUncondIds::conditional, LanceUncondIds::own}) {
    const LanceReading without = text_unconditional_reading(layout, ids);
    REQUIRE(without.context.size() == read.context.size());
    for (std::size_t i = 0; i < read.context.size(); ++i) {
      CHECK(without.context[i].split == read.context[i].split);
      CHECK(at::equal(without.context[i].position_ids, read.context[i].position_ids));
    }
    CHECK(at::equal(without.next, read.next));
  }
}

TEST_CASE("without a template the unconditional branch begins with the target") {
  const LanceLayout layout = LanceLayout::plain("A cat.", {3, 2, 2}, test::lance_tokenizer());
  const LanceReading without = text_unconditional_reading(layout, LanceUncondIds::conditional);
  CHECK(without.context.empty());
  // <|vision_start|> at 0, frames two steps apart, <|vision_end|> behind the last one.
  const Tensor expected = at::tensor({0, 1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 6}, at::kLong);
  CHECK(at::equal(without.next[0], expected));
  CHECK(without.next[1][1].item<std::int64_t>() == 1);
  CHECK(without.next[2][2].item<std::int64_t>() == 2);
}

TEST_CASE("golden case 10: the features of a timestep") {
  for (const auto& folder : test::lance_case_folders("10_positions")) {
    const auto file = SafetensorsFile::open(folder / "expected.safetensors");
    const Tensor times = file.view("timestep_features.t"),
                 expected = file.view("timestep_features.256");
    const double allowed = test::read_json(folder / "case.json")
                               .at("tolerance")
                               .at("groups")
                               .at("timestep_features.256")
                               .at("allowed");
    for (std::int64_t i = 0; i < times.size(0); ++i) {
      const Tensor features = timestep_embedding(times[i].item<float>()).flatten();
      CHECK((features - expected[i]).abs().max().item<double>() <= allowed);
    }
  }
}

}  // namespace
}  // namespace diptych
