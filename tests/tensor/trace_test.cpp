#include "lib/tensor/trace.h"

#include "lib/base/error.h"
#include "lib/tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace diptych {
namespace {

TEST_CASE("glob_matches") {
  for (const auto& [glob, text] :
       std::vector<std::pair<const char*, const char*>>{{"", ""},
                                                        {"*", ""},
                                                        {"*", "a.b"},
                                                        {"step???.latent", "step007.latent"},
                                                        {"kv.*.key", "kv.cond.layer00.key"},
                                                        {"*a*b", "xxaayyabb"},
                                                        {"**x", "x"},
                                                        {"a*", "a"}}) {
    CAPTURE(glob);
    CAPTURE(text);
    CHECK(glob_matches(glob, text));
  }
  for (const auto& [glob, text] :
       std::vector<std::pair<const char*, const char*>>{{"", "a"},
                                                        {"?", ""},
                                                        {"a", "ab"},
                                                        {"step???.latent", "step07.latent"},
                                                        {"kv.*.key", "kv.cond.layer00.value"},
                                                        {"*a*b", "xxaayyabc"},
                                                        {"a*b*c", "acb"},
                                                        {"a.b", "a_b"}}) {
    CAPTURE(glob);
    CAPTURE(text);
    CHECK_FALSE(glob_matches(glob, text));
  }
}

TEST_CASE("TraceSink: keeps what the globs ask for, as copies in the dtypes of the goldens") {
  TraceSink sink({"step*.latent", "ids", "mask"});
  CHECK(sink.wants("step000.latent"));
  CHECK_FALSE(sink.wants("step000.v_cond"));
  const Tensor latent = at::arange(6, at::kFloat).to(at::kBFloat16).view({2, 3}).t();
  Tensor changing = latent.to(at::kFloat).clone();
  sink.record("step000.latent", latent);
  sink.record("step001.latent", changing);
  sink.record("step001.v_cond", latent);
  sink.record("ids", at::arange(3, at::kInt));
  sink.record("mask", at::ones({2}, at::kBool));
  changing.zero_();
  REQUIRE(sink.tensors().size() == 4);
  const Tensor expected = at::tensor({0.F, 3.F, 1.F, 4.F, 2.F, 5.F}).view({3, 2});
  CHECK(sink.tensors()[0].first == "step000.latent");
  CHECK(equal_bits(sink.tensors()[0].second, expected));
  CHECK(sink.tensors()[0].second.is_contiguous());
  CHECK(equal_bits(sink.tensors()[1].second, expected));
  CHECK(equal_bits(sink.tensors()[2].second, at::arange(3, at::kLong)));
  CHECK(equal_bits(sink.tensors()[3].second, at::ones({2}, at::kByte)));
  CHECK_THROWS_WITH_AS(sink.record("ids", latent), doctest::Contains("recorded twice"), c10::Error);
}

TEST_CASE("TraceSink: writes one safetensors file; without globs keeps everything") {
  const test::Folder folder;
  TraceSink sink;
  sink.record("kv.cond.len", at::full({1}, 7, at::kLong));
  sink.record("stepNNN", at::full({2, 2}, 0.5));
  sink.write(folder / "trace.safetensors");
  const auto file = SafetensorsFile::open(folder / "trace.safetensors");
  CHECK(file.entries().size() == 2);
  CHECK(equal_bits(file.view("kv.cond.len"), at::full({1}, 7, at::kLong)));
  CHECK(equal_bits(file.view("stepNNN"), at::full({2, 2}, 0.5, at::kFloat)));
  CHECK_THROWS_AS(sink.write(folder / "gone/trace.safetensors"), WriteError);
}

}  // namespace
}  // namespace diptych
