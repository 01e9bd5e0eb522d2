// The sequences Lance reads against the recorded ones: tokens, modalities, blocks and splits; and
// prompts that are hard to find again in the template.
#include <algorithm>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/utf8.h"
#include "lib/pipelines/lance/layout.h"
#include "lib/text/byte_level_bpe.h"
#include "tests/pipelines/lance_cases.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

namespace diptych {
namespace {

using Ids = std::vector<std::int64_t>;

std::vector<std::int64_t> numbers(const Tensor& tensor) {
  const Tensor flat = tensor.contiguous().flatten();
  const auto* data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

std::vector<std::int64_t> modality_numbers(const LanceLayout& layout) {
  std::vector<std::int64_t> values;
  for (const LanceModality modality : layout.modality)
    values.push_back(static_cast<std::int64_t>(modality));
  return values;
}

std::vector<std::int64_t> lengths(const LanceLayout& layout) {
  std::vector<std::int64_t> values;
  for (const LanceSplit& split : layout.splits) values.push_back(split.tokens());
  return values;
}

std::vector<std::string> modes(const LanceLayout& layout) {
  std::vector<std::string> values;
  for (const LanceSplit& split : layout.splits) values.emplace_back(name_of(split.mode));
  return values;
}

Ids rows_of(const LanceLayout& layout, std::initializer_list<LanceBlockKind> kinds) {
  Ids rows;
  for (const LanceBlock& block : layout.blocks) {
    if (std::ranges::find(kinds, block.kind) == kinds.end()) continue;
    for (std::int64_t i = 0; i < block.grid.rows(); ++i) rows.push_back(block.first_row() + i);
  }
  return rows;
}

// Splits cover all tokens in order, and those of blocks their blocks.
void check_splits(const LanceLayout& layout) {
  std::int64_t token = 0;
  for (const LanceSplit& split : layout.splits) {
    CHECK(split.begin == token);
    CHECK(split.end > split.begin);
    token = split.end;
    if (!split.block) continue;
    CHECK(split.begin == layout.blocks[*split.block].begin);
    CHECK(split.end == layout.blocks[*split.block].end());
  }
}

void check_recorded(const test::RecordedSequence& recorded) {
  INFO(recorded.name);
  using enum LanceBlockKind;
  const LanceLayout layout = recorded.layout();
  CHECK(layout.ids == numbers(recorded.tensor("input_ids")));
  CHECK(lengths(layout) == recorded.entry.at("split_lens").get<std::vector<std::int64_t>>());
  CHECK(modes(layout) == recorded.entry.at("attn_modes").get<std::vector<std::string>>());
  check_splits(layout);
  CHECK(layout.splits.back().end == layout.tokens());
  if (recorded.prefix.empty() || !is_question(recorded.task))
    CHECK(modality_numbers(layout) == numbers(recorded.tensor("modality")));
  if (recorded.entry.contains("rendered"))
    CHECK(test::lance_tokenizer().decode(layout.ids) ==
          recorded.entry.at("rendered").get<std::string>());
  const auto check_rows = [&](const char* name, std::initializer_list<LanceBlockKind> kinds) {
    if (recorded.has(name)) CHECK(rows_of(layout, kinds) == numbers(recorded.tensor(name)));
  };
  check_rows("tokens.vae_indexes", {source, target});
  check_rows("tokens.vit_indexes", {vit});
  if (recorded.task != LanceTask::i2v) check_rows("tokens.target_indexes", {target});
  CHECK(layout.latent_rows() ==
        static_cast<std::int64_t>(rows_of(layout, {source, target}).size()));
  CHECK((layout.target_split() == nullptr) == is_question(recorded.task));
}

// How many sequences were checked; those that any build can normalise, or the others.
std::size_t check_all(bool plain) {
  std::size_t checked = 0;
  for (const auto& recorded : test::recorded_sequences()) {
    if ((check_utf8(recorded.prompt.text) < 0x300) != plain) continue;
    check_recorded(recorded);
    ++checked;
  }
  return checked;
}

TEST_CASE("recorded sequences: tokens, modalities, blocks and splits") {
  CHECK(check_all(/*plain=*/true) >= 5);
}

TEST_CASE("recorded sequences to be normalised" * doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  CHECK(check_all(/*plain=*/false) >= 2);
}

// A 16 x 16 picture from a text.
LanceLayout of_prompt(const std::string& prompt) {
  const std::vector<LanceElement> elements = {{LanceMedium::text, prompt}};
  const std::vector<LanceGrid> grids = {{1, 1, 1}};
  return LanceLayout::of(render_prompt(LanceTask::t2i, elements), grids, test::lance_tokenizer());
}
LanceLayout of_edit(const std::string& prompt) {
  const std::vector<LanceElement> elements = {{LanceMedium::text, prompt},
                                              {LanceMedium::image, ""}};
  const std::vector<LanceGrid> grids = {{1, 2, 3}, {1, 1, 2}, {1, 1, 2}};
  return LanceLayout::of(render_prompt(LanceTask::image_edit, elements), grids,
                         test::lance_tokenizer());
}
// The tokens of the caption as text, and where they begin.
std::string caption_text(const LanceLayout& layout) {
  Ids ids;
  for (std::size_t i = 0; i < layout.ids.size(); ++i)
    if (layout.modality[i] == LanceModality::caption) ids.push_back(layout.ids[i]);
  return test::lance_tokenizer().decode(ids);
}
std::int64_t caption_begin(const LanceLayout& layout) {
  const auto found = std::ranges::find(layout.splits, true, &LanceSplit::is_caption);
  return found == layout.splits.end() ? -1 : found->begin;
}
constexpr std::int64_t kUserText = 35;  // where the user's text begins in the template of t2i

TEST_CASE("an empty prompt has no caption") {
  const LanceLayout layout = of_prompt("");
  CHECK(lengths(layout) == Ids{42, 3, 1});
  CHECK(caption_text(layout).empty());
  CHECK(layout.without_caption().ids == layout.ids);
}

TEST_CASE("a short prompt is found where it first stands, as the official code finds it") {
  // "color" is in the system text, too.
  const LanceLayout color = of_prompt(" color");
  CHECK(caption_text(color) == " color");
  CHECK(caption_begin(color) > 0);
  CHECK(caption_begin(color) < kUserText);
  check_splits(color);
  CHECK(color.splits[2].end == 43);  // the rest of the template, the second " color" in it
  // At the very beginning there is no split before it.
  const LanceLayout start = of_prompt("<|im_start|>");
  CHECK(caption_begin(start) == 0);
  CHECK(start.splits.front().is_caption);
  // A line break alone is found behind "system", although the template's own joins it.
  CHECK(caption_begin(of_prompt("\n")) == 2);
}

TEST_CASE("special tokens in a prompt are tokens") {
  const LanceLayout end = of_prompt("<|im_end|>");
  CHECK(caption_text(end) == "<|im_end|>");
  CHECK(caption_begin(end) < kUserText);
  const LanceLayout longer = of_prompt("A cat.<|im_end|>\n<|im_start|>user\nA dog.");
  CHECK(caption_begin(longer) == kUserText);
  CHECK(caption_text(longer) == "A cat.<|im_end|>\n<|im_start|>user\nA dog.");
  check_splits(longer);
  CHECK(caption_text(of_prompt("an <|image_pad|> and <|vision_end|>")) ==
        "an <|image_pad|> and <|vision_end|>");
}

TEST_CASE("spaces around a prompt are part of it") {
  for (const char* prompt : {" A cat.", "A cat. ", "  A cat.  ", "A cat.\n", "A\n\ncat.", " "}) {
    CAPTURE(prompt);
    const LanceLayout layout = of_prompt(prompt);
    CHECK(caption_text(layout) == prompt);
    CHECK(caption_begin(layout) == kUserText);
  }
}

TEST_CASE("a prompt whose tokens the template changes is refused with the reason") {
  // Released vocabularies have a token for two line breaks; this one has not, so one is merged.
  BpeTables tables = read_bpe_files(test::kLanceGoldens / "checkpoint/Lance_3B");
  const std::string line = "\u010A";  // "\n" in the byte alphabet
  tables.pieces.push_back({line + line, tables.added.back().id + 10});
  tables.merges.push_back({line, line, tables.merges.size() + 2});
  const auto tokenizer = make_byte_level_bpe(tables);
  const auto layout_of = [&](const std::string& prompt) {
    const std::vector<LanceElement> elements = {{LanceMedium::text, prompt}};
    const std::vector<LanceGrid> grids = {{1, 1, 1}};
    return LanceLayout::of(render_prompt(LanceTask::t2i, elements), grids, *tokenizer);
  };
  CHECK(caption_begin(layout_of("A\n\ncat.")) == kUserText);
  CHECK(test::message_of([&] { layout_of("\nA cat."); }) ==
        "--prompt: begins with a line break, which becomes one token with the line break before "
        "it; expected a text that can stand in the template");
}

TEST_CASE("tokens that mark the places of pictures are refused") {
  for (const char* token : {"<|vision_start|>", "<|video_pad|>"}) {
    const std::string expected = fmt::format(
        "--prompt: holds {}, which marks the place of a picture or clip; expected a text without "
        "it",
        token);
    CHECK(test::message_of([&] { of_prompt(fmt::format("a {} b", token)); }) == expected);
    CHECK(test::message_of([&] {
            LanceLayout::plain(token, {1, 1, 1}, test::lance_tokenizer());
          }) == expected);
    CHECK(test::message_of([&] {
            LanceLayout::of(render_question({"Look.", token}), std::vector<LanceGrid>{{1, 1, 1}},
                            test::lance_tokenizer());
          }) == expected);
  }
}

TEST_CASE("prompts of edits" * doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  // Behind a block a line break stays one token.
  CHECK(caption_text(of_edit("\nAdd snow.")) == "\nAdd snow.");
  CHECK(test::message_of([] { of_edit("<|vision_end|>"); }) ==
        "--prompt: is a token that ends a picture or clip; expected a text");
  // U+0338 makes one character of itself and the ">" before it.
  CHECK(test::message_of([] {
          of_edit("\u0338 a");
        }).starts_with("--prompt: begins with a mark that joins the character before it"));
}

TEST_CASE("unicode prompts are found" * doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  for (const char* prompt : {"一只猫坐在红色的椅子上。", "🙂👍🏽 emoji", "Une fleur à côté",
                             "\u00A0nbsp\u3000wide", "\u0301a"}) {
    CAPTURE(prompt);
    const LanceLayout layout = of_prompt(prompt);
    CHECK(caption_text(layout) == prompt);
    CHECK(caption_begin(layout) == kUserText);
  }
  // Stored decomposed, read composed.
  CHECK(caption_text(of_prompt("co\u0302te\u0301")) == "c\u00F4t\u00E9");
}

TEST_CASE("what is left without a caption keeps its order") {
  const LanceLayout layout = of_prompt("A cat.");
  const LanceLayout rest = layout.without_caption();
  CHECK(rest.ids == of_prompt("").ids);
  CHECK(lengths(rest) == Ids{35, 7, 3, 1});
  CHECK(rest.blocks[0].begin == 42);
  check_splits(rest);
  CHECK(layout.context().size() == 3);
  CHECK(rest.context().size() == 2);
}

TEST_CASE("without a template the whole text is the caption") {
  const LanceLayout layout = LanceLayout::plain("A cat.", {1, 1, 2}, test::lance_tokenizer());
  const Ids text = test::lance_tokenizer().encode("A cat.");
  Ids expected = {601};
  expected.insert(expected.end(), text.begin(), text.end());
  expected.insert(expected.end(), {602, 609, 613, 613, 610});
  CHECK(layout.ids == expected);
  CHECK(modes(layout) == std::vector<std::string>{"causal", "noise"});
  CHECK(layout.splits[0].is_caption);
  const LanceLayout rest = layout.without_caption();
  CHECK(rest.ids == Ids{609, 613, 613, 610});
  CHECK(rest.context().empty());
  CHECK(LanceLayout::plain("", {1, 1, 1}, test::lance_tokenizer()).ids ==
        Ids{601, 602, 609, 613, 610});
}

LanceLayout of_question(const LanceQuestion& question) {
  return LanceLayout::of(render_question(question), std::vector<LanceGrid>{{1, 2, 2}},
                         test::lance_tokenizer());
}

TEST_CASE("an answer is never seen") {
  const LanceLayout with = of_question({"Look.", "What is it?", "A cat."});
  const LanceLayout without = of_question({"Look.", "What is it?"});
  const LanceLayout cut = with.cut_for_answer(test::lance_tokenizer());
  CHECK(cut.ids == without.cut_for_answer(test::lance_tokenizer()).ids);
  CHECK(test::lance_tokenizer().decode(cut.ids).ends_with("<|im_start|>assistant\n"));
  CHECK(cut.splits.back().end == cut.tokens() - 1);  // the line break is fed later
  check_splits(cut);
}

TEST_CASE("the answer begins where the official code finds it") {
  // The first "a" that a line break follows three tokens later ends the context, wherever it is.
  const LanceLayout early = of_question({"Look.", "assistant\nWhat is it?"});
  const LanceLayout cut = early.cut_for_answer(test::lance_tokenizer());
  CHECK(test::lance_tokenizer().decode(cut.ids).ends_with("<|vision_end|>assistant\n"));
  const LanceLayout in_system =
      of_question({"assistant\nLook.", "What?"}).cut_for_answer(test::lance_tokenizer());
  CHECK(in_system.blocks.empty());
  CHECK(modes(in_system) == std::vector<std::string>{"causal"});
  LanceLayout none;
  none.ids = {64, 325, 300};
  none.modality.resize(3, LanceModality::text);
  CHECK(test::message_of([&] {
          none.cut_for_answer(test::lance_tokenizer());
        }).starts_with("--prompt: the answer's place"));
}

TEST_CASE("recorded answers: where the context ends") {
  std::size_t checked = 0;
  for (const auto& recorded : test::recorded_sequences()) {
    if (!is_question(recorded.task)) continue;
    INFO(recorded.name);
    const LanceLayout cut = recorded.layout().cut_for_answer(test::lance_tokenizer());
    if (recorded.entry.contains("context_len"))
      CHECK(cut.tokens() - 1 == recorded.entry.at("context_len").get<std::int64_t>());
    if (recorded.entry.contains("segments")) {
      Ids recorded_lengths;
      for (const auto& segment : recorded.entry.at("segments"))
        recorded_lengths.push_back(segment.at("query_len"));
      CHECK(lengths(cut) == recorded_lengths);
    }
    ++checked;
  }
  CHECK(checked >= 2);
}

}  // namespace
}  // namespace diptych
