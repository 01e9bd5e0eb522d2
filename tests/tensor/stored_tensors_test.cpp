#include "lib/tensor/stored_tensors.h"

#include <cmath>
#include <limits>

#include "lib/tensor/finite.h"
#include "lib/tensor/safetensors.h"
#include "lib/tensor/weights.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

using Named = std::vector<std::pair<std::string, Tensor>>;

TEST_CASE("what is used where its file is mapped is known, and is what Weights gives") {
  const test::Folder folder;
  const Tensor numbers = at::arange(6, at::kFloat);
  write_safetensors(folder / "m.safetensors", Named{{"a", numbers},
                                                    {"b", numbers.to(at::kBFloat16)},
                                                    {"c", numbers.narrow(0, 0, 2)},
                                                    {"ids", at::arange(4, at::kLong)}});
  const CheckpointFiles files = open_checkpoint(folder / "m.safetensors");
  const Weights weights = Weights::open(folder / "m.safetensors", at::kCPU, at::kFloat);
  for (const char* name : {"a", "b", "c"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::int64_t size = name[0] == 'c' ? 2 : 6;
      const void* const first = weights.as(dtype).get(name, {size}).const_data_ptr();
      const bool same = first == weights.as(dtype).get(name, {size}).const_data_ptr();
      CHECK(is_view(files, name, dtype) == same);
      CHECK(same == ((name[0] == 'b') == (dtype == at::kBFloat16)));
    }
  }
  CHECK_FALSE(is_view(files, "none", at::kFloat));
  CHECK(view_bytes(files, at::kFloat) == (6 + 2) * 4);
  CHECK(view_bytes(files, at::kBFloat16) == 6 * 2);
  CHECK(stored_bytes(files, at::kBFloat16) == 6 * 2);
  CHECK(stored_bytes(files) == (6 + 2) * 4 + 6 * 2 + 4 * 8);
}

TEST_CASE("the first tensor that is not finite is named, of every floating dtype") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    CAPTURE(c10::toString(dtype));
    const test::Folder folder;
    const Tensor good = at::full({3, 5}, 440.F).to(dtype);
    Named tensors = {{"a", good}, {"b.c", good}, {"d", good}, {"ids", at::arange(4, at::kLong)}};
    write_safetensors(folder / "good.safetensors", tensors);
    require_finite(open_checkpoint(folder / "good.safetensors"));
    for (const float bad : {inf, -inf, nan}) {
      if (dtype == at::kFloat8_e4m3fn && !std::isnan(bad)) continue;  // has no infinity
      Tensor values = at::full({3, 5}, 440.F);
      values[2][4] = bad;
      tensors[1].second = tensors[2].second = values.to(dtype);
      const auto file = folder / "bad.safetensors";
      write_safetensors(file, tensors);
      CHECK_THROWS_AS(require_finite(open_checkpoint(file)), BadWeights);
      CHECK(input_error([&] { require_finite(open_checkpoint(file)); }) ==
            file.string() + ": tensor \"b.c\" holds NaN or infinity");
    }
  }
}

}  // namespace
}  // namespace diptych
