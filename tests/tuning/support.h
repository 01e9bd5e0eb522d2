// What the tests of tunings share.
#pragma once

#include <string>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/tuning/file.h"

namespace diptych::testing {

inline const TunedDevice kDevice = {"NVIDIA H200", 9, 0};

template <typename Act>
std::string refusal(const Act& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

inline TunedClass fp8_class(std::int64_t first, std::int64_t last, Fp8Product product) {
  return {TunedKernel::linear_fp8, {4608, 3584, 0}, first, last, static_cast<int>(product), {}};
}

}  // namespace diptych::testing
