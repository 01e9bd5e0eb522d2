// Text that was UTF-8 and read as Latin-1 or windows-1252: "schÃ¶n" for "schön".
#pragma once

#include <string>
#include <string_view>

namespace diptych {

// A line (valid UTF-8) whose characters are all bytes of one of the two encodings, whose bytes are
// UTF-8, and that has a sequence which hardly occurs in meant text, becomes what the bytes say,
// again and again; any other comes back as it is. Of ftfy 6.3.1 (rspeer/python-ftfy, Apache 2.0)
// that is fix_encoding() for these two encodings and whole lines, without lost or changed bytes.
std::string repair_mojibake(std::string line);

}  // namespace diptych
