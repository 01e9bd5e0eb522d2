// The one precompiled header, for each level of optimisation: all of ATen, and the headers that
// nearly every source needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <ATen/ATen.h>
#pragma GCC diagnostic pop
