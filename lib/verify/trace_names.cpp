#include "lib/verify/trace_names.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace diptych {
namespace {

std::vector<std::string_view> split(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t dot; (dot = name.find('.')) != std::string_view::npos;) {
    parts.push_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  parts.push_back(name);
  return parts;
}

// "layer07" -> {"layer", 7}; "v_cond" -> {"v_cond", -1}; "03" -> {"", 3}.
std::pair<std::string_view, std::int64_t> split_number(std::string_view part) {
  const auto last = part.find_last_not_of("0123456789");
  const std::size_t word = last == std::string_view::npos ? 0 : last + 1;
  std::int64_t number = -1;
  std::from_chars(part.data() + word, part.data() + part.size(), number);
  return {part.substr(0, word), number};
}

bool lists(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

// The place of a word in the list, or the list's length.
std::ptrdiff_t place_in(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) - words.begin();
}

// 1 for the first word of the list; 0 for one that is not in it.
std::ptrdiff_t rank_within(const TraceNames& names, std::string_view word) {
  return lists(names.within, word) ? place_in(names.within, word) + 1 : 0;
}

using Place = std::tuple<std::ptrdiff_t, std::int64_t, std::string_view>;

// Where a name stands by its first part alone, or by the whole of it where that is listed.
Place first_place(std::string_view name, std::string_view part, const TraceNames& names) {
  const auto [word, number] = split_number(part);
  const bool whole = lists(names.stages, name);
  return {place_in(names.stages, whole ? name : word), number, word};
}

// Where a later part of a name stands among its siblings; `parent`: the part before it.
Place place(std::string_view part, std::string_view parent, const TraceNames& names) {
  const auto [word, number] = split_number(part);
  if (const auto whole = rank_within(names, part); whole > 0) return {whole, 0, part};
  return {rank_within(names, word), lists(names.falling, parent) ? -number : number, word};
}

}  // namespace

bool computed_before(std::string_view a, std::string_view b, const TraceNames& names) {
  const auto left = split(a), right = split(b);
  const Place first = first_place(a, left[0], names), other = first_place(b, right[0], names);
  if (first != other) return first < other;
  for (std::size_t i = 1; i < std::min(left.size(), right.size()); ++i) {
    const Place x = place(left[i], left[i - 1], names), y = place(right[i], left[i - 1], names);
    if (x != y) return x < y;
  }
  return std::pair(left.size(), a) < std::pair(right.size(), b);
}

std::size_t count_known(std::span<const std::string> tensors, const TraceNames& names) {
  const auto known = [&](const std::string& name) {
    const std::string_view first = split(name).front();
    return !first.empty() && lists(names.stages, split_number(first).first);
  };
  return static_cast<std::size_t>(std::ranges::count_if(tensors, known));
}

}  // namespace diptych
