#include "lib/media/metadata.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/media/exif.h"

namespace diptych {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kParameters = "parameters";
constexpr std::string_view kUserComment = "UserComment", kImageDescription = "ImageDescription";
constexpr std::string_view kUnicode = "UNICODE\0"sv, kAscii = "ASCII\0\0\0"sv;

constexpr std::uint16_t kImageDescriptionTag = 0x010E, kExifDirectoryTag = 0x8769,
                        kExifVersionTag = 0x9000, kUserCommentTag = 0x9286;
constexpr std::uint16_t kLongType = 4, kUndefinedType = 7;

constexpr std::string_view kPrefix = "diptych:", kNamespace = "urn:diptych:1.0/";
constexpr std::string_view kPacketBegin =
    "<?xpacket begin=\"\xEF\xBB\xBF\" id=\"W5M0MpCehiHzreSzNTczkc9d\"?>\n"
    "<x:xmpmeta xmlns:x=\"adobe:ns:meta/\">"
    "<rdf:RDF xmlns:rdf=\"http://www.w3.org/1999/02/22-rdf-syntax-ns#\">\n";
constexpr std::string_view kPacketEnd = "</rdf:RDF></x:xmpmeta>\n<?xpacket end=\"r\"?>";
constexpr std::string_view kExtensionKey = "xmpNote:HasExtendedXMP=\"";
constexpr std::size_t kExtensionDigits = 32;

// Big-endian, as the web UI writes it.
struct TiffWriter {
  std::vector<std::uint8_t> bytes;

  void put(std::uint32_t value, int count) {
    for (int i = count; i-- > 0;) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void entry(std::uint16_t tag, std::uint16_t type, std::size_t count, std::uint32_t value) {
    put(tag, 2);
    put(type, 2);
    put(static_cast<std::uint32_t>(count), 4);
    put(value, 4);
  }
};

std::vector<std::uint8_t> utf16(std::string_view text) {
  TiffWriter out;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    const char32_t point = character.code_point;
    if (point < 0x10000) {
      out.put(point, 2);
    } else {
      out.put(0xD800 + ((point - 0x10000) >> 10), 2);
      out.put(0xDC00 + ((point - 0x10000) & 0x3FF), 2);
    }
    i += character.length;
  }
  return std::move(out.bytes);
}

std::string from_utf16(std::span<const std::uint8_t> bytes, bool big_endian) {
  const auto unit = [&](std::size_t at) {
    return static_cast<char32_t>(big_endian ? bytes[at] << 8 | bytes[at + 1]
                                            : bytes[at + 1] << 8 | bytes[at]);
  };
  std::string text;
  for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) {
    char32_t point = unit(at);
    const bool high = point >= 0xD800 && point < 0xDC00, paired = high && at + 3 < bytes.size();
    const char32_t low = paired ? unit(at + 2) : 0;
    if (low >= 0xDC00 && low < 0xE000) {
      point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
      at += 2;
    } else if (point >= 0xD800 && point < 0xE000) {
      point = 0xFFFD;
    }
    append_utf8(text, point);
  }
  return text;
}

// Texts end at NUL, or are filled with blanks.
std::string trimmed(std::string text) {
  text.resize(std::min(text.find('\0'), text.size()));
  while (text.ends_with(' ')) text.pop_back();
  return replace_invalid_utf8(text);
}

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string comment_text(std::span<const std::uint8_t> bytes, bool big_endian) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with(kUnicode))
    return trimmed(from_utf16(bytes.subspan(kUnicode.size()), big_endian));
  constexpr std::size_t kCodeBytes = 8;
  const bool coded = text.starts_with(kAscii) || text.starts_with("\0\0\0\0\0\0\0\0"sv);
  return trimmed(std::string(text.substr(coded ? kCodeBytes : 0)));
}

bool is_name(std::string_view keyword) {
  const auto is_letter = [](unsigned char c) { return c < 0x80 && std::isalpha(c) != 0; };
  const auto is_part = [&](unsigned char c) {
    return is_letter(c) || std::isdigit(c) != 0 || c == '_' || c == '-' || c == '.';
  };
  return !keyword.empty() && is_letter(static_cast<unsigned char>(keyword.front())) &&
         std::ranges::all_of(keyword, is_part);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\r':  // readers of XML make \n of it
        out += "&#13;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
          append_utf8(out, 0xFFFD);
        else
          out += c;
    }
  }
  return out;
}

// "&lt;" -> "<"; nothing for one that XML does not have.
std::optional<char32_t> entity(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, char32_t>, 5> kNamed = {
      {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
  for (const auto& [known, point] : kNamed) {
    if (name == known) return point;
  }
  if (!name.starts_with('#')) return std::nullopt;
  const bool hex = name.starts_with("#x");
  char32_t point = 0;
  for (const char c : name.substr(hex ? 2 : 1)) {
    const std::size_t digit =
        "0123456789abcdef"sv.find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    if (digit >= (hex ? 16u : 10u) || point > 0x10FFFF) return std::nullopt;
    point = point * (hex ? 16 : 10) + static_cast<char32_t>(digit);
  }
  const bool valid = point > 0 && point <= 0x10FFFF && (point < 0xD800 || point >= 0xE000);
  return valid ? std::optional(point) : std::nullopt;
}

std::string unescaped(std::string_view xml) {
  std::string out;
  while (!xml.empty()) {
    const std::size_t begin = std::min(xml.find('&'), xml.size());
    out += xml.substr(0, begin);
    xml.remove_prefix(begin);
    if (xml.empty()) break;
    const std::size_t end = xml.find(';');
    const auto point = end == xml.npos || end > 12 ? std::nullopt : entity(xml.substr(1, end - 1));
    if (point) {
      append_utf8(out, *point);
      xml.remove_prefix(end + 1);
    } else {
      out += xml.front();
      xml.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace

std::vector<std::uint8_t> make_exif(const PictureTexts& texts) {
  const auto found = std::ranges::find(texts, kParameters, &PictureTexts::value_type::first);
  if (found == texts.end()) return {};
  const std::vector<std::uint8_t> comment = utf16(found->second);
  constexpr std::uint32_t kFirst = 8, kDirectoryBytes = 2 + 12 + 4;
  constexpr std::uint32_t kExif = kFirst + kDirectoryBytes, kExifBytes = 2 + 2 * 12 + 4;
  TiffWriter out;
  out.bytes = {'M', 'M', 0, 42};
  out.put(kFirst, 4);
  out.put(1, 2);
  out.entry(kExifDirectoryTag, kLongType, 1, kExif);
  out.put(0, 4);  // no further directory
  out.put(2, 2);
  out.entry(kExifVersionTag, kUndefinedType, 4, 0x30323332);  // "0232"
  out.entry(kUserCommentTag, kUndefinedType, kUnicode.size() + comment.size(), kExif + kExifBytes);
  out.put(0, 4);
  out.bytes.insert(out.bytes.end(), kUnicode.begin(), kUnicode.end());
  out.bytes.insert(out.bytes.end(), comment.begin(), comment.end());
  return std::move(out.bytes);
}

PictureTexts exif_texts(std::span<const std::uint8_t> exif) {
  PictureTexts texts;
  const auto tiff = Tiff::open(exif);
  if (!tiff) return texts;
  const std::size_t first = tiff->first_directory();
  const auto add = [&](std::string_view name, std::string text) {
    if (!text.empty()) texts.emplace_back(name, std::move(text));
  };
  add(kImageDescription, trimmed(std::string(as_text(tiff->value(first, kImageDescriptionTag)))));
  const std::size_t directory = tiff->number(first, kExifDirectoryTag);
  if (directory > 0)
    add(kUserComment, comment_text(tiff->value(directory, kUserCommentTag), tiff->big_endian));
  return texts;
}

std::string make_xmp(const PictureTexts& texts) {
  std::string xmp(kPacketBegin);
  xmp += fmt::format("<rdf:Description rdf:about=\"\" xmlns:diptych=\"{}\">\n", kNamespace);
  for (const auto& [keyword, text] : texts) {
    if (!is_name(keyword))
      throw InputError("XMP property '{}': expected letters, digits, _, - or .", keyword);
    about(Subject("XMP text '" + keyword + "'"), [&] { check_utf8(text); });
    xmp += fmt::format("<{0}{1}>{2}</{0}{1}>\n", kPrefix, keyword, escaped(text));
  }
  xmp += "</rdf:Description>";
  xmp += kPacketEnd;
  return xmp;
}

PictureTexts xmp_texts(std::string_view xmp) {
  PictureTexts texts;
  const std::string opening = fmt::format("<{}", kPrefix);
  for (;;) {
    const std::size_t begin = xmp.find(opening);
    if (begin == xmp.npos) return texts;
    xmp.remove_prefix(begin + opening.size());
    const std::size_t open = xmp.find('>');
    if (open == xmp.npos) return texts;
    const std::string keyword(xmp.substr(0, xmp.find_first_of(" />\t\r\n")));
    const bool empty = open > 0 && xmp[open - 1] == '/';
    if (empty || !is_name(keyword)) continue;
    const std::size_t close = xmp.find(fmt::format("</{}{}", kPrefix, keyword), open);
    if (close == xmp.npos) return texts;
    texts.emplace_back(keyword,
                       replace_invalid_utf8(unescaped(xmp.substr(open + 1, close - open - 1))));
    xmp.remove_prefix(close);
  }
}

std::string make_xmp_pointer(std::string_view extension_name) {
  std::string xmp(kPacketBegin);
  xmp += fmt::format(
      "<rdf:Description rdf:about=\"\" xmlns:xmpNote=\"http://ns.adobe.com/xmp/note/\" {}{}\"/>",
      kExtensionKey, extension_name);
  xmp += kPacketEnd;
  return xmp;
}

std::string xmp_extension_name(std::string_view xmp) {
  const std::size_t found = xmp.find(kExtensionKey);
  if (found == xmp.npos) return {};
  return std::string(xmp.substr(found + kExtensionKey.size(), kExtensionDigits));
}

PictureTexts merge_texts(PictureTexts xmp, const PictureTexts& exif) {
  for (const auto& text : exif) {
    const bool known =
        std::ranges::find(xmp, text.second, &PictureTexts::value_type::second) != xmp.end();
    if (!known) xmp.push_back(text);
  }
  return xmp;
}

}  // namespace diptych
