// Loops over several ranges at once.
#pragma once

namespace diptych::test {

// act(a, b, ...) with a value of each range, the last one's changing fastest.
template <typename Act>
void for_each_combination(const Act& act) {
  act();
}
template <typename Act, typename Range, typename... Ranges>
void for_each_combination(const Act& act, const Range& range, const Ranges&... ranges) {
  for (const auto& value : range)
    for_each_combination([&](const auto&... others) { act(value, others...); }, ranges...);
}

}  // namespace diptych::test
