// Whether drafts pay, by the clock of the run itself. Pure: it is told how long iterations took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace diptych {

// Blocks are timed first, then a few iterations of one row (plain steps, which write text as well),
// and from then on the last blocks are held against the plain step. Once plain steps would have
// written more tokens a second, drafting ends for good. The first iteration of each kind does not
// count: it makes what later ones find.
class DraftTrial {
 public:
  static constexpr std::size_t kBlocks = 8;      // that are looked at
  static constexpr std::size_t kPlainSteps = 5;  // of which the median counts

  // How the next iteration of `texts` texts is to run. Where texts have become half as many as at
  // the last measurement, it begins anew: a shared forward costs something else then.
  bool drafts(std::size_t texts);
  // What it took, and how many tokens it gave all of them.
  void add(double seconds, std::int64_t tokens);
  bool switched_off() const { return off_; }

 private:
  struct Block {
    double seconds, tokens;  // tokens of one text
  };
  void judge();

  std::size_t texts_ = 0, measured_texts_ = 0;
  bool drafting_ = true, warm_ = false, off_ = false;
  std::deque<Block> blocks_;
  std::vector<double> plain_;
  std::optional<double> plain_seconds_;
};

}  // namespace diptych
