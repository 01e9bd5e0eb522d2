#include "kernels/host_float.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

using namespace diptych::kernels;

namespace {

// Values around every rounding boundary: all 16-bit patterns in the upper half of a float, with
// lower halves just below, at and above a tie.
template <typename Body>
void for_boundary_floats(const Body& body) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low :
         {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      body(std::bit_cast<float>((high << 16) | low));
    }
  }
}

}  // namespace

TEST_CASE("rounding to 16 bits is torch's") {
  std::int64_t wrong = 0;
  for_boundary_floats([&](float value) {
    const HostBf16 bf16 = round_to<HostBf16>(value);
    const HostF16 f16 = round_to<HostF16>(value);
    if (std::isnan(value)) {
      wrong += !std::isnan(widen(bf16)) || !std::isnan(widen(f16));
    } else {
      wrong += bf16.bits != c10::BFloat16(value).x;
      wrong += f16.bits != c10::Half(value).x;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("widening every 16-bit value is torch's") {
  std::int64_t wrong = 0;
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float bf16 = widen(HostBf16{bits}), f16 = widen(HostF16{bits});
    const auto torch_bf16 = static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
    const auto torch_f16 = static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
    wrong += std::isnan(torch_bf16) ? !std::isnan(bf16) : bf16 != torch_bf16;
    wrong += std::isnan(torch_f16) ? !std::isnan(f16) : f16 != torch_f16;
  }
  CHECK(wrong == 0);
}

TEST_CASE("rounding to e4m3 is torch's up to the largest value, and saturates beyond") {
  std::int64_t wrong = 0;
  for_boundary_floats([&](float value) {
    const HostE4m3 code = round_to<HostE4m3>(value);
    if (std::isnan(value)) {
      wrong += (code.bits & 0x7f) != 0x7f;
    } else if (std::fabs(value) >= 448) {
      wrong += code.bits != (std::signbit(value) ? 0xfe : 0x7e);
    } else {
      wrong += code.bits != c10::Float8_e4m3fn(value).x;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("widening every e4m3 value is torch's") {
  std::int64_t wrong = 0;
  for (std::uint32_t i = 0; i < 0x100; ++i) {
    const auto bits = static_cast<std::uint8_t>(i);
    const float value = widen(HostE4m3{bits});
    const auto torch_value =
        static_cast<float>(c10::Float8_e4m3fn(bits, c10::Float8_e4m3fn::from_bits()));
    wrong += std::isnan(torch_value) ? !std::isnan(value) : value != torch_value;
  }
  CHECK(wrong == 0);
}

TEST_CASE("int8 saturates, and NaN is 0") {
  CHECK(round_to<std::int8_t>(126.5F) == 126);
  CHECK(round_to<std::int8_t>(-1e9F) == -127);
  CHECK(round_to<std::int8_t>(std::numeric_limits<float>::quiet_NaN()) == 0);
}

TEST_CASE("ties go to even") {
  CHECK(rounded<HostE4m3>(17) == 16.0F);
  CHECK(rounded<HostE4m3>(0x1p-10F) == 0.0F);
  CHECK(rounded<HostE4m3>(0x1.8p-9F) == 0x1p-8F);
  CHECK(rounded<HostE4m3>(1e9F) == 448.0F);
  CHECK(rounded<HostBf16>(1.00390625F) == 1.0F);       // 1 + 2^-8, halfway to 1 + 2^-7
  CHECK(rounded<HostBf16>(1.01171875F) == 1.015625F);  // 1 + 3 * 2^-8
  CHECK(rounded<HostF16>(2049.0F) == 2048.0F);
  CHECK(rounded<HostF16>(65519.0F) == 65504.0F);
  CHECK(std::isinf(rounded<HostF16>(65520.0F)));
  CHECK(rounded<HostE4m3>(19.0F) == 20.0F);
  CHECK(rounded<HostF16>(0x1p-25F) == 0.0F);
  CHECK(rounded<HostF16>(0x1.8p-24F) == 0x1p-23F);
}
