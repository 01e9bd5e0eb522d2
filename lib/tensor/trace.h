// `--trace`: the tensors of a run under the names of the golden data, in one safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

class TraceSink {
 public:
  // Keeps names that match any of the globs (`*`, `?`); none given: all.
  explicit TraceSink(std::vector<std::string> globs = {});
  bool wants(std::string_view name) const;
  // Copies the value to the CPU (floating point as float32, float64 as it is, integers as int64,
  // bytes as uint8).
  // Returns at once for names not asked for. A name recorded twice is a programmer's error.
  void record(std::string_view name, const Tensor& value);
  const std::vector<std::pair<std::string, Tensor>>& tensors() const { return tensors_; }
  void write(const std::filesystem::path& path) const;  // atomic safetensors; throws WriteError

  // What a replay of a recorded case says beside its tensors. A tensor that this version does not
  // compute, and so does not answer for:
  void leave_out(std::string name) { left_out_.push_back(std::move(name)); }
  const std::vector<std::string>& left_out() const { return left_out_; }
  // A row of a table that the replay checked itself:
  void count_row() { ++rows_; }
  std::size_t rows() const { return rows_; }

 private:
  std::vector<std::string> globs_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<std::string> left_out_;
  std::size_t rows_ = 0;
};

bool glob_matches(std::string_view glob, std::string_view text);

}  // namespace diptych
