#include "lib/tuning/table.h"

#include <doctest/doctest.h>

#include "tests/tuning/support.h"

namespace diptych {
namespace {

using testing::fp8_class;
using testing::refusal;

constexpr TunedShape kQkv = {4608, 3584, 0}, kDown = {3584, 18944, 0};

int row_kernel_to_8(const TunedShape& shape, std::int64_t rows) {
  return static_cast<int>(usual_fp8_product(rows, shape[0], shape[1]));
}

TunedTimes times(std::int64_t rows, std::vector<std::optional<double>> milliseconds) {
  return {rows, std::move(milliseconds)};
}

std::vector<TunedClass> fp8_classes(const TunedShape& shape, std::vector<TunedTimes> measured) {
  return make_classes(TunedKernel::linear_fp8, shape, measured, row_kernel_to_8);
}

}  // namespace

TEST_CASE("a table finds the choice of a kernel, shape and number of rows, and no other") {
  TuningTable table;
  table.add(fp8_class(2, 3, Fp8Product::row_kernel));
  table.add(fp8_class(4, 40, Fp8Product::cutlass));
  table.add({TunedKernel::add_rms_norm, {3584, 0, 0}, 1, 5, 2, {}});
  const auto fp8 = [&](std::int64_t rows, const TunedShape& shape = kQkv) {
    return table.find(TunedKernel::linear_fp8, shape, rows);
  };
  CHECK_FALSE(fp8(1).has_value());
  CHECK(fp8(2) == static_cast<int>(Fp8Product::row_kernel));
  CHECK(fp8(3) == static_cast<int>(Fp8Product::row_kernel));
  CHECK(fp8(4) == static_cast<int>(Fp8Product::cutlass));
  CHECK(fp8(40) == static_cast<int>(Fp8Product::cutlass));
  CHECK_FALSE(fp8(41).has_value());
  CHECK_FALSE(fp8(3, kDown).has_value());
  CHECK_FALSE(table.find(TunedKernel::linear_int8, kQkv, 3).has_value());
  CHECK(table.find(TunedKernel::add_rms_norm, {3584, 0, 0}, 5) == 2);
}

TEST_CASE("a product takes what was measured, else the usual") {
  TuningTable table;
  table.add(fp8_class(2, 4, Fp8Product::cutlass));
  table.add({TunedKernel::linear_int8, kQkv, 2, 4, static_cast<int>(Int8Product::copy), {}});
  const auto fp8 = [&](std::int64_t rows, const TuningTable* tuning, const TunedShape& shape) {
    return choose_fp8_product(tuning, rows, shape[0], shape[1]);
  };
  CHECK(fp8(4, &table, kQkv) == Fp8Product::cutlass);
  CHECK(fp8(4, nullptr, kQkv) == Fp8Product::row_kernel);
  CHECK(fp8(4, &table, kDown) == Fp8Product::row_kernel);
  CHECK(fp8(16, &table, kQkv) == Fp8Product::row_kernel);
  CHECK(fp8(17, &table, kQkv) == Fp8Product::cublas);
  CHECK(fp8(17, &table, kDown) == Fp8Product::cutlass);  // cuBLASLt has no such sums
  CHECK(choose_int8_product(&table, 4, kQkv[0], kQkv[1]) == Int8Product::copy);
  CHECK(choose_int8_product(nullptr, 4, kQkv[0], kQkv[1]) == Int8Product::row_kernel);
  CHECK(choose_int8_product(&table, 16, kQkv[0], kQkv[1]) == Int8Product::row_kernel);
  CHECK(choose_int8_product(&table, 17, kQkv[0], kQkv[1]) == Int8Product::copy);
  CHECK(choose_int8_product(nullptr, 2047, kQkv[0], kQkv[1]) == Int8Product::copy);
  CHECK(choose_int8_product(nullptr, 2048, kQkv[0], kQkv[1]) == Int8Product::mixed_256);
  CHECK(choose_int8_product(nullptr, 2048, kQkv[0], kQkv[1] + 8) == Int8Product::copy);
}

TEST_CASE("how rows are activated and quantised is what was measured, else the usual") {
  TuningTable table;
  table.add({TunedKernel::silu_mul_e4m3,
             {18944, 0, 0},
             1,
             600,
             static_cast<int>(SiluVectors::not_ahead),
             {}});
  table.add({TunedKernel::quantize_rows,
             {3584, 0, 0},
             600,
             2000,
             static_cast<int>(QuantizeVectors::two),
             {}});
  CHECK(choose_silu_vectors(&table, 600, 18944) == SiluVectors::not_ahead);
  CHECK(choose_silu_vectors(&table, 601, 18944) == SiluVectors::three);
  CHECK(choose_silu_vectors(&table, 600, 3584) == SiluVectors::three);
  CHECK(choose_silu_vectors(nullptr, 600, 18944) == SiluVectors::three);
  CHECK(choose_quantize_vectors(&table, 2000, 3584) == QuantizeVectors::two);
  CHECK(choose_quantize_vectors(&table, 2001, 3584) == QuantizeVectors::four);
  CHECK(choose_quantize_vectors(nullptr, 1023, 3584) == QuantizeVectors::two);
  CHECK(choose_quantize_vectors(nullptr, 1024, 3584) == QuantizeVectors::four);
}

TEST_CASE("row kernels of products have the shapes that their names say") {
  CHECK(row_kernel_shape(Fp8Product::row_kernel) == 0);
  CHECK(row_kernel_shape(Fp8Product::row_kernel_4x4) == 1);
  CHECK(row_kernel_shape(Fp8Product::row_kernel_4x8) == 2);
  CHECK_FALSE(row_kernel_shape(Fp8Product::cublas).has_value());
  CHECK_FALSE(row_kernel_shape(Fp8Product::cutlass).has_value());
  CHECK(row_kernel_shape(Int8Product::row_kernel) == 0);
  CHECK(row_kernel_shape(Int8Product::row_kernel_4x4) == 1);
  CHECK(row_kernel_shape(Int8Product::row_kernel_4x8) == 2);
  CHECK_FALSE(row_kernel_shape(Int8Product::copy).has_value());
  CHECK_FALSE(row_kernel_shape(Int8Product::mixed_64).has_value());
  CHECK(mixed_shape(Int8Product::mixed_64) == 0);
  CHECK(mixed_shape(Int8Product::mixed_128) == 1);
  CHECK(mixed_shape(Int8Product::mixed_256) == 2);
  CHECK_FALSE(mixed_shape(Int8Product::copy).has_value());
  CHECK_FALSE(mixed_shape(Int8Product::row_kernel).has_value());
  const auto mixed = static_cast<int>(Int8Product::mixed_128);
  CHECK_FALSE(impossible_choice(TunedKernel::linear_int8, {40, 48, 0}, 100, mixed).has_value());
  CHECK(impossible_choice(TunedKernel::linear_int8, {40, 40, 0}, 100, mixed) ==
        "its widths are no multiples of 8 and 16");
  CHECK(impossible_choice(TunedKernel::linear_int8, {36, 48, 0}, 100, mixed).has_value());
}

TEST_CASE("a table refuses what contradicts itself or cannot be") {
  TuningTable table;
  table.add(fp8_class(4, 8, Fp8Product::row_kernel));
  const auto refused = [&](const TunedClass& tuned) { return refusal([&] { table.add(tuned); }); };
  CHECK(refused(fp8_class(8, 9, Fp8Product::cublas)) ==
        "rows: [8, 9] overlaps [4, 8] of the same kernel and shape");
  CHECK(refused(fp8_class(9, 20, Fp8Product::row_kernel)) ==
        "choice: found row_kernel for rows 9 to 20, but row kernels take at most 16 rows");
  CHECK(refused(fp8_class(9, 17, Fp8Product::row_kernel_4x8)) ==
        "choice: found row_kernel_4x8 for rows 9 to 17, but row kernels take at most 16 rows");
  CHECK(refused(fp8_class(1, 3, Fp8Product::row_kernel)) ==
        "rows: found [1, 3], expected the first and the last, from 2 on");
  CHECK(refused(fp8_class(20, 10, Fp8Product::cublas)) ==
        "rows: found [20, 10], expected the first and the last, from 2 on");
  TunedClass tuned = fp8_class(100, 2000, Fp8Product::cublas);
  tuned.shape = kDown;
  CHECK(refused(tuned) ==
        "choice: found cublas for rows 100 to 2000, but cublas has no such product of 100 rows");
  tuned.first_rows = 1000;
  CHECK(refused(tuned) == "accepted");
  tuned.shape = {4600, 3584, 0};
  CHECK(refused(tuned) ==
        "choice: found cublas for rows 1000 to 2000, but its widths are no multiples of 16");
  CHECK(table.classes().size() == 2);
}

TEST_CASE("attention goes to splitkv first for the queries that it takes") {
  const auto first = [](std::int64_t from, std::int64_t to, FirstAttention choice) {
    return TunedClass{TunedKernel::attention, {28, 4, 128}, from, to, static_cast<int>(choice), {}};
  };
  TuningTable table;
  table.add(first(1, 16, FirstAttention::splitkv));
  CHECK(refusal([&] { table.add(first(17, 20, FirstAttention::splitkv)); }) ==
        "choice: found splitkv for rows 17 to 20, but splitkv takes at most 16 queries");
  const auto usual = [](const TunedShape&, std::int64_t queries) {
    return static_cast<int>(usual_attention(queries));
  };
  CHECK(usual({}, 16) == static_cast<int>(FirstAttention::splitkv));
  CHECK(usual({}, 17) == static_cast<int>(FirstAttention::flash));
  CHECK(usual({}, 128) == static_cast<int>(FirstAttention::hopper));
  const std::vector<TunedTimes> measured = {times(2, {9.0, 3.0, 2.0, 1.0, 4.0}),
                                            times(256, {5.0, 1.0, 2.0, {}, 3.0}),
                                            times(1024, {5.0, 9.0, 9.0, {}, 4.0})};
  const auto classes = make_classes(TunedKernel::attention, {28, 4, 128}, measured, usual);
  REQUIRE(classes.size() == 3);
  CHECK(classes[0].choice == static_cast<int>(FirstAttention::splitkv));
  CHECK(classes[0].last_rows == 16);
  CHECK(classes[1].choice == static_cast<int>(FirstAttention::flash));
  CHECK(classes[1].first_rows == 17);
  CHECK(classes[2].choice == static_cast<int>(FirstAttention::hopper));
}

TEST_CASE("the hash is of the choices, not of their times or order") {
  TuningTable a, b, c;
  TunedClass few = fp8_class(2, 8, Fp8Product::row_kernel);
  const TunedClass many = fp8_class(9, 99, Fp8Product::cublas);
  a.add(few), a.add(many);
  few.measured = {times(2, {0.5, 0.6, {}})};
  b.add(many), b.add(few);
  CHECK(a.hash() == b.hash());
  CHECK(a.hash().size() == 16);
  few.choice = static_cast<int>(Fp8Product::cutlass);
  c.add(few), c.add(many);
  CHECK(c.hash() != a.hash());
  CHECK(TuningTable().hash() != a.hash());
}

TEST_CASE("classes: neighbours of one choice are one, limits are halfway in ratio") {
  const auto classes = fp8_classes(
      kQkv, {times(2, {1.0, 5.0, 4.0}), times(4, {2.0, 5.0, 4.0}), times(8, {9.0, 5.0, 4.0}),
             times(64, {{}, 5.0, 4.0}), times(1024, {{}, 20.0, 30.0})});
  REQUIRE(classes.size() == 3);
  CHECK(classes[0].choice == static_cast<int>(Fp8Product::row_kernel));
  CHECK(classes[0].first_rows == 2);
  CHECK(classes[0].last_rows == 5);  // sqrt(4 * 8) = 5.7
  CHECK(classes[0].measured.size() == 2);
  CHECK(classes[1].choice == static_cast<int>(Fp8Product::cutlass));
  CHECK(classes[1].first_rows == 6);
  CHECK(classes[1].last_rows == 256);
  CHECK(classes[2].choice == static_cast<int>(Fp8Product::cublas));
  CHECK(classes[2].first_rows == 257);
  CHECK(classes[2].last_rows == 1024);
  TuningTable table;
  for (const TunedClass& tuned : classes) table.add(tuned);
}

TEST_CASE("classes: the usual choice stays unless another is clearly faster") {
  const auto near = fp8_classes(kQkv, {times(8, {1.0, 0.98, 1.2})});
  REQUIRE(near.size() == 1);
  CHECK(near[0].choice == static_cast<int>(Fp8Product::row_kernel));
  const auto clear = fp8_classes(kQkv, {times(8, {1.0, 0.96, 1.2})});
  CHECK(clear.at(0).choice == static_cast<int>(Fp8Product::cublas));
  CHECK(fp8_classes(kQkv, {times(16, {{}, {}, {}})}).empty());
}

TEST_CASE("classes: a limit lies where both choices are possible") {
  // The row kernel ends at 8; cuBLASLt has long sums of narrow results from 513 rows on.
  const auto classes = fp8_classes(
      kDown, {times(8, {1.0, {}, 2.0}), times(64, {{}, {}, {}}), times(2048, {{}, 5.0, 6.0})});
  REQUIRE(classes.size() == 2);
  CHECK(classes[0].last_rows == 8);
  CHECK(classes[1].first_rows == 513);
  CHECK(exceeds_cublas(512, 3584, 18944));
  CHECK_FALSE(exceeds_cublas(513, 3584, 18944));
  const auto cutlass = fp8_classes(kDown, {times(8, {2.0, {}, 1.0}), times(2048, {{}, 5.0, 6.0})});
  REQUIRE(cutlass.size() == 2);
  CHECK(cutlass[0].last_rows == 512);
  CHECK(cutlass[1].first_rows == 513);
  TuningTable table;
  for (const TunedClass& tuned : cutlass) table.add(tuned);
}

}  // namespace diptych
