// Whether a container ends where it says: libav shows what is there and is silent about the rest.
#pragma once

#include <cstdint>
#include <optional>

namespace diptych {

// How many bytes the file would have to have, at least, where these are more than it has: as
// Matroska's segment, AVI's RIFF header, an MP4's index, Ogg's last page, the packets of MPEG-TS,
// the last packet of an MPEG program stream, FLV's metadata and last tag, ASF's header, or the
// frames of YUV4MPEG say.
// Nothing for a file that is whole, and for one that does not tell. `descriptor`: open to read.
std::optional<std::uint64_t> missing_file_bytes(int descriptor, std::uint64_t file_bytes);

}  // namespace diptych
