// The acceptance rule of speculative decoding, and where its texts end.
#include "lib/sampling/speculative.h"

#include <doctest/doctest.h>

#include "lib/sampling/token_rows.h"

namespace diptych {
namespace {

using Ids = std::vector<std::int64_t>;

Tensor rows(const std::vector<Ids>& values) {
  std::vector<Tensor> tensors;
  for (const Ids& row : values) tensors.push_back(at::tensor(row, at::kLong));
  return at::stack(tensors);
}

Ids numbers(const Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<std::int64_t>();
  return {begin, begin + tensor.numel()};
}

Ids added(DecidedText& text, const Ids& ids) {
  const auto counted = text.add(ids);
  return {counted.begin(), counted.end()};
}

}  // namespace

TEST_CASE("drafts are accepted up to the first that differs") {
  const Tensor drafts = rows({{7, 8, 9}, {7, 8, 9}, {7, 8, 9}, {7, 8, 9}});
  const Tensor choices = rows({{7, 8, 9, 4}, {7, 5, 9, 4}, {1, 8, 9, 4}, {7, 8, 1, 9}});
  CHECK(numbers(acceptance_lengths(drafts, choices)) == Ids{4, 2, 1, 3});
}

TEST_CASE("a block of one row accepts nothing and gives one token") {
  const Tensor drafts = at::empty({2, 0}, at::kLong);
  CHECK(numbers(acceptance_lengths(drafts, rows({{3}, {4}}))) == Ids{1, 1});
}

TEST_CASE("no choice is never an accepted draft") {
  const Tensor choices = rows({{kNoToken, 8}});
  CHECK(numbers(acceptance_lengths(rows({{0}}), choices)) == Ids{1});
}

TEST_CASE("a text is cut behind its first stop id") {
  DecidedText text({10, {5, 6}});
  CHECK(added(text, {1}) == Ids{1});
  CHECK_FALSE(text.ended());
  CHECK(added(text, {2, 6, 3, 5}) == Ids{2, 6});
  CHECK(text.ids() == Ids{1, 2, 6});
  CHECK(text.decided() == 5);
  CHECK(text.stopped());
  CHECK(text.ended());
}

TEST_CASE("a text is cut at its limit, and ends an iteration behind it") {
  DecidedText text({3, {}});
  CHECK(added(text, {1}) == Ids{1});
  CHECK(added(text, {2, 3}) == Ids{2, 3});
  CHECK_FALSE(text.ended());  // three tokens are there, as the reference sees it the last is open
  CHECK(added(text, {4, 5}).empty());
  CHECK(text.ids() == Ids{1, 2, 3});
  CHECK(text.ended());
  CHECK_FALSE(text.stopped());
}

TEST_CASE("a stop id behind the limit does not count") {
  DecidedText text({2, {9}});
  CHECK(added(text, {1, 2, 9}) == Ids{1, 2});
  CHECK(text.ended());
  CHECK_FALSE(text.stopped());
}

TEST_CASE("rows of logits are chosen from as single ones") {
  const Tensor logits = at::sin(at::arange(60, at::kFloat).mul(7.3)).mul(3).view({5, 12});
  const Tensor race = at::cos(at::arange(60, at::kFloat).mul(1.7)).abs().add(0.01).view({5, 12});
  for (const TokenSampling& sampling :
       {TokenSampling{}, TokenSampling{0.8, 0, 1}, TokenSampling{0.8, 3, 1},
        TokenSampling{1.5, 0, 0.6}, TokenSampling{1.5, 4, 0.9}}) {
    const Ids all = numbers(next_tokens(logits, sampling, race, 11));
    for (std::int64_t row = 0; row < 5; ++row) {
      const Tensor one = next_token(logits[row], sampling, race[row], 11);
      CHECK(all[static_cast<std::size_t>(row)] == read_token(one));
    }
  }
}

TEST_CASE("a row that is not finite gives no token, the others do") {
  const Tensor logits = rows({{1, 2}, {3, 1}}).to(at::kFloat);
  logits[0][1].fill_(std::numeric_limits<float>::quiet_NaN());
  CHECK(numbers(next_tokens(logits, {}, {}, 2)) == Ids{kNoToken, 0});
}

}  // namespace diptych
