// A request as BAGEL reads it: checked, its pictures read from their files, nothing computed.
// The pictures may be known by their sizes alone, which is enough to plan with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/pipelines/bagel/session.h"

namespace diptych {

struct BagelPrepared {
  const RunConfig* config = nullptr;
  BagelRequest request;
  std::vector<InputRecord> inputs;
  LatentSize size;       // of the picture; none of an answer
  Tensor noise;          // given by a file: float32 [rows, row width]
  bool records = false;  // how its steps change

  // Of the next picture, float32 [rows, row_width]: as given, or the next draw.
  Tensor start_noise(std::int64_t row_width);
};

enum class PictureReading { pixels, sizes };

// `config` must outlive what is returned. Throws InputError for whatever the checkpoint and what is
// on this machine cannot serve. Logs once where texts are to be written without their kernel.
BagelPrepared prepare_bagel(const RunConfig& config, const BagelCheckpoint& checkpoint,
                            const Runtime& runtime, Log& log,
                            PictureReading reading = PictureReading::pixels);

// Of requests that are painted together.
PaintRequest paint_request_of(std::span<const BagelPrepared> prepared);

}  // namespace diptych
