// The rows of a clip that one of several ranks decodes: a band of latent rows, and of larger maps
// the rows that stand for them. Convolutions read a row above it and a row below, the halo, which
// the neighbours have.
#pragma once

#include <cstdint>

#include "lib/runtime/ranks.h"

namespace diptych {

class WanVaeBand {
 public:
  // Whether the ranks that share a request (null: this process is alone) can each have some of so
  // many latent rows.
  static bool divides(const Ranks* ranks, std::int64_t rows);
  // Of `rows` latent rows that `ranks` divide. The first ranks have one more where they do not
  // divide evenly.
  WanVaeBand(Ranks& ranks, std::int64_t rows);

  std::int64_t first() const { return first_of(index()); }
  std::int64_t count() const { return count_of(index()); }

  // A map of all rows, [n, h, w, c], of any number of rows to a latent row -> that of this band.
  Tensor cut(const Tensor& all) const;
  // frames [n, 1 + h + 1, w, c]: h rows of this band, to which the first row and the last are added
  // in place: those of the neighbours, zeros where the map ends. All ranks call it.
  void fill_halo(const Tensor& frames) const;
  // This band's [n, h, w, c], contiguous -> all rows. All ranks call it.
  Tensor join(const Tensor& own) const;

 private:
  std::int64_t index() const;
  std::int64_t size() const;
  std::int64_t first_of(std::int64_t rank) const;
  std::int64_t count_of(std::int64_t rank) const;

  Ranks* ranks_;
  std::int64_t rows_;
};

}  // namespace diptych
