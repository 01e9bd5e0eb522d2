// What the names of recorded tensors say: when in a run a tensor is computed, and which tolerance
// groups of a golden case it belongs to. A name is a list of parts with dots between them
// ("prefill.00.cond.text.layer01.hidden", "step003.v_guided"). Which parts there are, and in which
// order, each family says by a record of its own.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace diptych {

// The tolerance groups of the names that match a glob, the most specific first; unused ones are "".
struct TraceGroups {
  std::string_view glob;
  std::array<std::string_view, 2> groups;
};

// The names of one family. Words stand without their number: "step" for "step003", and "" for a
// part that is a number alone. Empty lists: nothing is known of the names.
struct TraceNames {
  std::span<const std::string_view> stages;   // first parts or whole names, in the order of a run
  std::span<const std::string_view> within;   // the other parts, in the order within a stage
  std::span<const std::string_view> falling;  // parts whose children run from the highest number
  std::span<const TraceGroups> groups;        // the first glob that matches a name counts
};

// A strict weak order: true where `a` is computed before `b` in a run. Parts are compared one by
// one: first parts by `stages` (a whole name that is listed comes where it stands), unlisted ones
// last; other parts by `within`, unlisted ones (ids, lengths, the numbers of layers and calls)
// first; equal places by number, then by word.
bool computed_before(std::string_view a, std::string_view b, const TraceNames& names);

// How many of the tensors begin with one of the family's stages.
std::size_t count_known(std::span<const std::string> tensors, const TraceNames& names);

}  // namespace diptych
