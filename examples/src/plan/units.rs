//! Times, data rates and counts on the command line and in tables.

/// Rates from here on are no limit, in bytes per second.
pub const UNLIMITED: f64 = 1e17;

/// Units of bytes per second.
const RATES: [(f64, &str); 5] = [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")];

/// Parses a time such as `200ms`, `1.5us` or `2s`; returns seconds.
///
/// # Errors
/// If the text is no positive time.
pub fn time(text: &str) -> Result<f64, String> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    quantity(text, &units).ok_or_else(|| "give a time with its unit, such as 1.5us or 200ms".to_owned())
}

/// Parses a data rate such as `400Gb/s` (bits) or `50GB/s` (bytes); returns bytes per second.
///
/// # Errors
/// If the text is no positive rate.
pub fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").or_else(|| text.strip_suffix("ps")).unwrap_or("");
    let units = [
        ("Gbit", 0.125e9),
        ("Tbit", 0.125e12),
        ("Mb", 0.125e6),
        ("Gb", 0.125e9),
        ("Tb", 0.125e12),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
    ];
    quantity(number, &units).ok_or_else(|| "give a rate such as 400Gb/s (bits) or 50GB/s (bytes)".to_owned())
}

/// Parses a positive number such as `70e9`.
///
/// # Errors
/// If the text is no positive number.
pub fn positive(text: &str) -> Result<f64, String> {
    quantity(text, &[("", 1.0)]).ok_or_else(|| "give a number larger than 0, such as 70e9".to_owned())
}

/// Parses a ratio of at least 1, such as `3` for 3:1.
///
/// # Errors
/// If the text is no number from 1 to 1000.
pub fn oversubscription(text: &str) -> Result<f64, String> {
    let ratio = text.strip_suffix(":1").unwrap_or(text);
    let ratio = ratio.parse().ok().filter(|ratio| (1.0..=1000.0).contains(ratio));
    ratio.ok_or_else(|| "give a ratio from 1 to 1000, such as 2 or 2:1".to_owned())
}

/// Formats seconds with the unit that gives one to three digits before the point.
#[must_use]
pub fn show_time(seconds: f64) -> String {
    scaled(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])
}

/// Formats bytes per second. What is faster than any link is no limit.
#[must_use]
pub fn show_rate(rate: f64) -> String {
    if rate >= UNLIMITED {
        return "any rate".to_owned();
    }
    scaled(rate, &RATES)
}

/// Formats bytes per second as bits per second, the unit of NICs.
#[must_use]
pub fn show_bits(rate: f64) -> String {
    scaled(8.0 * rate, &[(1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s")])
}

/// Formats bytes per second as a number in the unit that [`show_rate`] gives to `other`; with a
/// unit of its own if that number is too long or too short.
#[must_use]
pub fn show_rate_beside(rate: f64, other: f64) -> String {
    let (scale, _) = unit(other, &RATES);
    let fits = (0.01..1000.0).contains(&(rate / scale));
    if fits { number(rate / scale) } else { show_rate(rate) }
}

/// Formats a number of bytes in powers of 1000.
#[must_use]
pub fn show_bytes(bytes: f64) -> String {
    scaled(bytes, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

/// Formats the size of a message: in powers of 1024 if it is a whole number of them, otherwise in
/// powers of 1000.
#[must_use]
pub fn show_size(bytes: f64) -> String {
    let binary = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let largest = binary.into_iter().map(|(scale, name)| (bytes / scale as f64, name)).find(|(value, _)| *value >= 1.0);
    match largest {
        Some((value, name)) if value.fract() == 0.0 => format!("{value} {name}"),
        _ => show_bytes(bytes),
    }
}

/// Formats a number of things: `70 billion`.
#[must_use]
pub fn show_count(count: f64) -> String {
    let text = scaled(count, &[(1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1.0, "")]);
    text.trim_end().to_owned()
}

/// Formats how many times one number is another: `3.4`, `28`. Small differences from 1 show.
#[must_use]
pub fn show_ratio(ratio: f64) -> String {
    match ratio {
        ..1.1 => format!("{ratio:.2}"),
        ..9.95 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

/// Rounds up to two digits.
#[must_use]
pub fn round_up(value: f64) -> f64 {
    let step = 10_f64.powf(value.log10().floor() - 1.0);
    // A number that has two digits already is not raised by its binary error.
    (value / step - 1e-9).ceil() * step
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let (scale, name) = unit(value, units);
    format!("{} {name}", number(value / scale))
}

/// The unit that gives one to three digits before the point.
fn unit<'a>(value: f64, units: &[(f64, &'a str)]) -> (f64, &'a str) {
    let last = units[units.len() - 1];
    units.iter().copied().find(|&(scale, _)| value >= 0.9995 * scale).unwrap_or(last)
}

/// A number with three digits, without zeros at its end; with an exponent if it is long.
fn number(value: f64) -> String {
    if value >= 99999.5 {
        return format!("{value:.2e}");
    }
    let decimals = match value {
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    short.to_owned()
}

/// The value of a positive number followed by one of the units.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let of_unit = |&(unit, scale): &(&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (number > 0.0 && number <= 1e18).then_some(number * scale)
    };
    units.iter().find_map(of_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    #[test]
    fn quantities_parse_with_units() {
        for (text, seconds) in [("200ms", 0.2), ("1.5us", 1.5e-6), ("2s", 2.0), ("10 ns", 1e-8)] {
            assert!(close(time(text).unwrap(), seconds), "{text}");
        }
        for (text, bytes) in [("400Gb/s", 50e9), ("400Gbps", 50e9), ("50GB/s", 50e9), ("1.6Tbit/s", 0.2e12)] {
            assert!(close(rate(text).unwrap(), bytes), "{text}");
        }
        assert!(close(positive("70e9").unwrap(), 70e9));
        assert!(close(oversubscription("3:1").unwrap(), 3.0));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "5", "ms", "-1ms", "0s", "nanus", "infs", "1e99s"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["", "400", "400G", "Gb/s", "-1GB/s", "NaNGB/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "0", "-3", "inf", "NaN"] {
            assert!(positive(text).is_err() && oversubscription(text).is_err(), "{text}");
        }
        assert!(oversubscription("0.5").is_err());
    }

    #[test]
    fn quantities_print_with_three_digits() {
        assert_eq!(show_time(0.2), "200 ms");
        assert_eq!(show_time(1.5e-6), "1.5 us");
        assert_eq!(show_time(0.0), "0 ns");
        assert_eq!(show_rate(1.4e12), "1.4 TB/s");
        assert_eq!(show_rate(UNLIMITED), "any rate");
        assert_eq!(show_bytes(140e9), "140 GB");
        assert_eq!(show_bytes(999.96), "1 kB");
        assert_eq!(show_bits(50e9), "400 Gb/s");
        assert_eq!(show_count(70e9), "70 billion");
        assert_eq!(show_count(1000.0), "1000");
        assert_eq!(show_count(1.5), "1.5");
        assert_eq!(show_bytes(1.234e18), "1.23e6 TB");
    }

    #[test]
    fn sizes_print_in_the_powers_that_they_are_whole_numbers_of() {
        let cases =
            [(8.0, "8 B"), (1024.0, "1 KiB"), (1536.0, "1.54 kB"), (3.0 * 1048576.0, "3 MiB"), (140e9, "140 GB")];
        for (bytes, text) in cases {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn rates_are_compared_in_one_unit() {
        assert_eq!(show_rate_beside(400e9, 1.38e12), "0.4");
        assert_eq!(show_rate_beside(400e9, 345e9), "400");
        assert_eq!(show_rate_beside(1e9, 1.38e12), "1 GB/s");
        assert_eq!(show_rate_beside(UNLIMITED, 1.38e12), "any rate");
        assert_eq!([1.04, 3.445, 27.6].map(show_ratio), ["1.04", "3.4", "28"]);
        for (value, rounded) in [(1.378, 1.4), (1.4, 1.4), (1.401, 1.5), (99.5, 100.0), (0.2, 0.2)] {
            assert!(close(round_up(value), rounded), "{value}");
        }
    }
}
