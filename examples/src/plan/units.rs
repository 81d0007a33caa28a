//! Times, data rates and counts on the command line and in tables.

/// Rates from here on are no limit, in bytes per second.
pub const UNLIMITED: f64 = 1e17;

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
    scaled(rate, &[(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])
}

/// Formats a number of bytes in powers of 1000.
#[must_use]
pub fn show_bytes(bytes: f64) -> String {
    scaled(bytes, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let last = units[units.len() - 1];
    let (scale, name) = units.iter().copied().find(|&(scale, _)| value >= 0.9995 * scale).unwrap_or(last);
    let value = value / scale;
    let decimals = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    let text = format!("{value:.decimals$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} {name}")
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
    }
}
